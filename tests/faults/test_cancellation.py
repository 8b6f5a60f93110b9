"""Every public await, cancelled at random moments: it ends at once, nothing is left open and no job is lost.

The moments are drawn from a seed. A cancellation may take 100 ms, and whatever the machine kept the event loop from
turning meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.servers import Server, ValkeyCluster, ValkeySentinel
from tests.waiting import until
from toril import (
    FlowNode,
    FlowProducer,
    ListQueue,
    ListWorker,
    Queue,
    QueueEvents,
    StreamQueue,
    StreamWorker,
    Worker,
)
from toril.errors import TorilError
from toril.events import _stream
from toril.observe.doctor import Doctor
from toril.observe.exporter import Exporter
from toril.producer.bridge import move_jobs
from toril.transport import ConnectionPolicy

ALLOWED = 0.1  # seconds that a cancellation may take
GRACEFUL = 2.0  # … of whoever leaves a worker: its jobs end first
SEED = 20
QUICK: dict[str, Any] = {"lock_duration": 2, "heartbeat_interval": 0.5, "stalled_check_interval": 0.5}


class LoopLag:
    """How long the machine has kept the event loop from turning."""

    TURN = 0.002

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._begun = self._now()
        self._worst = 0.0

    @property
    def worst(self) -> float:
        return max(self._worst, self._now() - self._begun - self.TURN)

    async def watch(self) -> None:
        while True:
            self._worst = self.worst
            self._begun = self._now()
            await asyncio.sleep(self.TURN)


@asynccontextmanager
async def watched() -> AsyncIterator[LoopLag]:
    lag = LoopLag()
    task = asyncio.create_task(lag.watch())
    try:
        yield lag
    finally:
        task.cancel()


async def cancel_after(seconds: float, step: Awaitable[Any], allowed: float = ALLOWED) -> None:
    """Cancels a step at that moment; it must end as cancelled, and in time. One that was done by then is fine."""
    now = asyncio.get_running_loop().time
    async with watched() as lag:
        task = asyncio.ensure_future(step)
        await asyncio.sleep(seconds)
        if not task.cancel():
            task.result()
            return
        cancelled = now()
        done, _ = await asyncio.wait({task}, timeout=10)
        took = now() - cancelled
        assert done, "the cancellation was swallowed"
        assert task.cancelled(), f"the cancellation became {task.exception()!r}"
        assert took < allowed + 2 * lag.worst, f"it took {took * 1000:.0f} ms"


async def limit_to(seconds: float, step: Awaitable[Any], allowed: float = ALLOWED) -> None:
    """The same by `asyncio.timeout`, which must not be overrun."""
    now = asyncio.get_running_loop().time
    async with watched() as lag:
        begun = now()
        try:
            async with asyncio.timeout(seconds):
                await step
        except TimeoutError:
            took = now() - begun - seconds
            assert took < allowed + 2 * lag.worst, f"the time-out was overrun by {took * 1000:.0f} ms"


async def left_over(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Returns the new tasks that do not end by themselves: what goes on without the one who was cancelled should."""
    deadline = asyncio.get_running_loop().time() + 20
    while (left := asyncio.all_tasks() - before) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    return left


async def handled(_: Any) -> str:
    await asyncio.sleep(0)
    return "done"


# --- the steps ----------------------------------------------------------------------------------------------------


class Place:
    """Where the steps happen: a server and a namespace, objects that live through many steps, and a folder."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.there: dict[str, Any] = {"redis": url, "prefix": prefix}
        self.folder = folder
        self.queue: Queue[Any] = Queue("shared", **self.there)
        self.flows = FlowProducer(**self.there)
        self.events = QueueEvents("shared", **self.there)
        self.list = ListQueue("gen", **self.there)
        self.stream = StreamQueue("jobs.b", **self.there)
        self.acknowledged: set[str] = set()
        self._workers: list[Any] = []

    def worker(self, kind: Any, name: str, **options: Any) -> Any:
        """A worker that is stopped after the step."""
        made = kind(name, handled, **QUICK, **options, **self.there)
        self._workers.append(made)
        return made

    async def rest(self) -> None:
        while self._workers:
            await self._workers.pop().stop()

    async def close(self) -> None:
        await self.rest()
        for one in (self.queue, self.flows, self.events, self.list, self.stream):
            await one.close()


def family(queue: str = "shared") -> FlowNode:
    return FlowNode("parent", queue=queue, children=[FlowNode("child", queue=queue) for _ in range(3)])


async def add(place: Place) -> None:
    place.acknowledged.add((await place.queue.add("x", {"n": 1})).id)


async def add_many(place: Place) -> None:
    jobs = await place.queue.add_bulk([("x", {"n": n}) for n in range(700)])
    place.acknowledged |= {job.id for job in jobs}


async def add_flow(place: Place) -> None:
    place.acknowledged |= {job.id for job in (await place.flows.add(family())).walk()}


async def look(place: Place) -> None:
    await place.queue.get_job_counts()
    for job in await place.queue.get_jobs(end=20):
        await job.get_state()


async def manage(place: Place) -> None:
    await place.queue.pause()
    await place.queue.resume()
    await place.queue.retry_jobs(name="x")
    await place.queue.promote_jobs()
    await place.queue.clean(3600)


async def schedule(place: Place) -> None:
    await place.queue.schedulers.upsert("nightly", cron="0 3 * * *")
    await place.queue.schedulers.list()
    await place.queue.schedulers.remove("nightly")


async def wait_for_a_job(place: Place) -> None:
    job = await place.queue.add("slow", delay=60)
    await job.log("a line")
    await job.wait_until_finished()


async def follow_events(place: Place) -> None:
    async for _ in place.events.follow("0"):
        pass


async def next_event(place: Place) -> None:
    await place.events.open()
    async for _ in place.events:
        pass


async def list_and_stream(place: Place) -> None:
    for queue in (place.list, place.stream):
        await queue.add("work", {"n": 1})
        await queue.add_bulk([("work", {"n": n}) for n in range(200)], delay=60)
        await queue.counts()
        await queue.promote()
        [one async for one in queue.dead_letters()]
        await queue.replay()
        await queue.export(place.folder / "letters.ndjson")


async def come_and_go(place: Place) -> None:
    """Objects of their own, so that connecting and closing are cancelled as well."""
    async with Queue("own", **place.there) as queue:
        await queue.add("x")
    async with FlowProducer(**place.there) as flows:
        await flows.add(family("own"))
    async with ListQueue("own", **place.there) as listed:
        await listed.add("x")


async def come_and_listen(place: Place) -> None:
    async with QueueEvents("shared", **place.there) as events:
        events.on("added", lambda event: None)
        async for _ in events:
            pass


async def close_slowly(place: Place) -> None:
    queue: Queue[Any] = Queue("own", **place.there)
    adds = [asyncio.ensure_future(queue.add("x", {"n": n})) for n in range(20)]
    try:
        await asyncio.sleep(0)
        await queue.close()
    finally:
        for one in adds:
            one.cancel()


async def use(worker: Any) -> None:
    await worker.start()
    await worker.run_until_idle()
    await worker.pause()
    worker.resume()
    await worker.stop()
    await worker.start()
    await worker.wait_stopped()


async def work(place: Place) -> None:
    await use(place.worker(Worker, "shared", concurrency=5))


async def work_on_lists(place: Place) -> None:
    await use(place.worker(ListWorker, "gen", reliable=True))


async def work_on_streams(place: Place) -> None:
    await use(place.worker(StreamWorker, "jobs.b", claim_idle=2))


async def leave_a_worker(place: Place) -> None:
    async with Worker("shared", handled, **QUICK, **place.there) as worker:
        await worker.wait_stopped()


async def run_a_worker(place: Place) -> None:
    await Worker("shared", handled, **QUICK, **place.there).run()


async def move(place: Place) -> None:
    async with Queue("moved", **place.there) as target:
        await move_jobs(place.list, target)


async def observe(place: Place) -> None:
    async with Exporter(place.there["redis"], queues=["shared"], prefix=place.there["prefix"]) as exporter:
        await exporter.scrape()
    await Doctor(place.there["redis"], queues=["shared"], prefix=place.there["prefix"]).examine()


# A step, and about how long it takes if nobody cancels it.
STEPS: dict[Callable[[Place], Awaitable[None]], float] = {
    add: 0.004,
    add_many: 0.05,
    add_flow: 0.006,
    look: 0.03,
    manage: 0.03,
    schedule: 0.01,
    wait_for_a_job: 0.02,
    follow_events: 0.02,
    next_event: 0.02,
    list_and_stream: 0.06,
    come_and_go: 0.03,
    come_and_listen: 0.03,
    close_slowly: 0.03,
    work: 0.06,
    work_on_lists: 0.06,
    work_on_streams: 0.06,
    leave_a_worker: 0.03,
    run_a_worker: 0.03,
    move: 0.06,
    observe: 0.06,
}
ROUNDS = 12
LEAVING = (leave_a_worker, run_a_worker)


@pytest.fixture
async def place(valkey: Server, prefix: str, tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(valkey.url, prefix, tmp_path)
    yield made
    await made.close()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_a_cancelled_await_ends_at_once_and_leaves_nothing_open(
    place: Place, step: Callable[[Place], Awaitable[None]]
) -> None:
    before = asyncio.all_tasks()
    chance = random.Random(f"{SEED} {step.__name__}")
    for number in range(ROUNDS):
        end = cancel_after if number % 3 else limit_to
        allowed = GRACEFUL if step in LEAVING else ALLOWED
        await end(chance.random() * STEPS[step], step(place), allowed)
        await place.rest()
    await place.close()
    assert await left_over(before) == set()
    # The server's guard looks for connections left open, and the test's for threads.


async def test_no_job_is_lost_by_cancellation(place: Place) -> None:
    chance = random.Random(SEED)
    await add_many(place)
    for _ in range(40):
        step = chance.choice([add, add_many, add_flow, work, run_a_worker, manage])
        await cancel_after(chance.random() * STEPS[step], step(place), GRACEFUL)
        await place.rest()
    await place.queue.resume()
    async with Worker("shared", handled, concurrency=20, **QUICK, **place.there) as worker:
        async with asyncio.timeout(50):
            await worker.run_until_idle()
    completed = {job.id for job in await place.queue.get_completed()}
    assert len(place.acknowledged) >= 700
    assert place.acknowledged <= completed


async def test_events_are_not_lost_when_iterating_is_cancelled(place: Place) -> None:
    """As `asyncio.timeout` around each `anext` does it; a silence between them leaves no calls behind on the server."""
    chance = random.Random(SEED)
    seen: list[str | None] = []
    async with QueueEvents("shared", **place.there) as events:
        iteration = events.follow()
        jobs = []
        for number in range(60):
            if number % 2:
                jobs.append(await place.queue.add("x"))
            try:
                async with asyncio.timeout(chance.random() * 0.02):
                    while True:
                        event = await anext(iteration)
                        seen.append(event.job_id if event.type == "added" else None)
            except TimeoutError:
                continue
        async with asyncio.timeout(20):
            while jobs[-1].id not in seen:
                seen.append((await anext(iteration)).job_id)
    added = [one for one in seen if one is not None]
    assert list(dict.fromkeys(added)) == [job.id for job in jobs]


# --- a server that does not answer --------------------------------------------------------------------------------

SILENT: dict[str, Callable[[Place], Awaitable[Any]]] = {
    "a call": add,
    "many": add_many,
    "a flow": add_flow,
    "a look": look,
    "a scheduler": schedule,
    "waiting for a job": wait_for_a_job,
    "events": next_event,
    "coming and going": come_and_go,
    "coming and listening": come_and_listen,
    "closing": close_slowly,
    "lists and streams": list_and_stream,
    "moving": move,
    "a figure": observe,
    "a worker": lambda place: place.worker(Worker, "shared").start(),
    "a list worker": lambda place: place.worker(ListWorker, "gen").start(),
    "a stream worker": lambda place: place.worker(StreamWorker, "jobs.b").start(),
}


@pytest.mark.parametrize("connected", [False, True])
async def test_a_silent_server_holds_up_no_cancellation(
    start_valkey: Callable[..., Server], prefix: str, tmp_path: Path, connected: bool
) -> None:
    before = asyncio.all_tasks()
    server = start_valkey()
    place = Place(server.url, prefix, tmp_path)
    if connected:
        for first in (add, add_flow, list_and_stream):
            await first(place)
        await place.events.open()
    chance = random.Random(SEED)
    server.freeze()
    try:
        for name, step in SILENT.items():
            for end in (cancel_after, limit_to):
                try:
                    await end(0.005 + chance.random() * 0.03, step(place))
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error
        await limit_to(0.02, place.close())
    finally:
        server.thaw()
    await place.close()
    assert await left_over(before) == set()


# --- other servers ------------------------------------------------------------------------------------------------


async def test_cancellation_is_honoured_on_a_cluster(
    cluster: ValkeyCluster, prefix: str, tmp_path: Path
) -> None:
    assert await tasks_left_by_every_step(Place(cluster.url, f"{{{prefix}}}", tmp_path)) == set()


async def test_cancellation_is_honoured_with_sentinels(
    sentinel: ValkeySentinel, prefix: str, tmp_path: Path
) -> None:
    assert await tasks_left_by_every_step(Place(sentinel.url, prefix, tmp_path)) == set()


async def tasks_left_by_every_step(place: Place) -> set[asyncio.Task[Any]]:
    before = asyncio.all_tasks()
    chance = random.Random(SEED)
    for step in (add, add_many, add_flow, wait_for_a_job, next_event, come_and_go, come_and_listen, work):
        for _ in range(4):
            await cancel_after(chance.random() * STEPS[step], step(place))
            await place.rest()
    await place.close()
    return await left_over(before)


async def test_an_attempt_to_connect_that_nobody_wants_any_more_is_called_off(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    """Also where the policy would go on trying for long."""
    server = start_valkey()
    server.freeze()
    policy = ConnectionPolicy(connect_timeout=60, command_timeout=60, call_attempts=10)
    before = asyncio.all_tasks()
    try:
        for make in (Queue, QueueEvents):
            async with asyncio.timeout(20):
                with pytest.raises(TimeoutError):
                    async with (
                        asyncio.timeout(0.02),
                        make("q", redis=server.url, prefix=prefix, policy=policy),
                    ):
                        raise TorilError("it cannot have connected")
        assert await left_over(before) == set()
    finally:
        server.thaw()


async def test_closing_does_not_wait_for_a_connection_that_is_being_made(
    valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events close at once while the connection of their reading is made; nothing was asked on it yet."""
    monkeypatch.setattr(_stream, "_UNBLOCK_SECONDS", 60.0)
    with Proxy(valkey.port) as proxy:
        events = QueueEvents("q", redis=proxy.url, prefix=prefix)
        await events.open()
        proxy.shut_the_door()
        events.on("completed", handled)
        readers = events._transport._readers
        await until(lambda: any(reader._connecting for reader in readers), "the reader connects")
        closing = asyncio.create_task(events.close())
        closed, _ = await asyncio.wait({closing}, timeout=10)
        proxy.open_the_door()
        await closing
    assert closed
