"""Moving jobs between kinds of queue: nothing is lost, nothing is doubled, even when a move dies half-way."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import (
    Backoff,
    Envelope,
    FlowNode,
    FlowProducer,
    InvalidOption,
    ListQueue,
    ListWorker,
    Queue,
    StreamQueue,
    StreamWorker,
    TorilError,
    TransientError,
    Worker,
)
from toril.commands.command import plain
from toril.producer import bridge
from toril.producer._bridge_targets import target_of, transport_of
from toril.producer.bridge import Moved, move_jobs

KINDS = ("list", "stream", "bullmq")


class Place:
    """Queues of all kinds on one server, and workers that collect what they hold."""

    def __init__(self, url: str, prefix: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.prefix = prefix
        self._stack = stack

    async def queue(self, kind: str, name: str) -> Any:
        if kind == "bullmq":
            return await self._stack.enter_async_context(Queue(name, redis=self.url, prefix=self.prefix))
        cls = ListQueue if kind == "list" else StreamQueue
        return await self._stack.enter_async_context(cls(name, redis=self.url, prefix=self.prefix))

    async def collect(self, kind: str, name: str) -> list[tuple[str, str, Any]]:
        """Runs all jobs of a queue: their ids, names and payloads in order."""
        seen: list[tuple[str, str, Any]] = []

        async def handle(job: Any) -> None:
            if isinstance(job, Envelope):
                seen.append((job.job_id, job.task_type, job.payload))
            else:
                seen.append((job.id, job.name, {k: v for k, v in job.data.items() if k != "_meta"}))

        cls: Any = {"list": ListWorker, "stream": StreamWorker, "bullmq": Worker}[kind]
        async with asyncio.timeout(20), cls(name, handle, redis=self.url, prefix=self.prefix) as worker:
            await worker.run_until_idle()
        return seen


@pytest.fixture
async def place(server_url: str, prefix: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(server_url, prefix, stack)


async def unfinished(queue: Any) -> int:
    if isinstance(queue, Queue):
        counts = await queue.get_job_counts()
        return int(counts.waiting + counts.active + counts.delayed)
    return int(await queue.pending())


def ways() -> list[Any]:
    return [pytest.param(a, b, id=f"{a} to {b}") for a in KINDS for b in KINDS]


@pytest.mark.parametrize(("from_kind", "to_kind"), ways())
async def test_all_waiting_jobs_arrive_in_order_and_leave_nothing_behind(
    place: Place, from_kind: str, to_kind: str
) -> None:
    source, target = await place.queue(from_kind, "old.jobs"), await place.queue(to_kind, "new.jobs")
    sent = [await source.add(f"task{n % 3}", {"n": n, "text": "grüezi"}) for n in range(250)]
    ids = [getattr(one, "job_id", None) or one.id for one in sent]
    assert await move_jobs(source, target) == Moved(waiting=250, scheduled=0, known=0)
    assert await unfinished(source) == 0
    assert await place.collect(to_kind, "new.jobs") == [
        (ids[n], f"task{n % 3}", {"n": n, "text": "grüezi"}) for n in range(250)
    ]
    assert await move_jobs(source, target) == Moved(0, 0, 0)


@pytest.mark.parametrize(("from_kind", "to_kind"), ways())
async def test_scheduled_jobs_keep_their_time(place: Place, from_kind: str, to_kind: str) -> None:
    source, target = await place.queue(from_kind, "old.jobs"), await place.queue(to_kind, "new.jobs")
    for n in range(3):
        await source.add("task", {"n": n}, delay=3600 + n)
    assert await move_jobs(source, target) == Moved(waiting=0, scheduled=3, known=0)
    assert (await unfinished(source), await unfinished(target)) == (0, 3)
    if isinstance(target, Queue):
        delays = [job.delay for job in await target.get_delayed()]
    else:
        now = await transport_of(target).now_ms()
        delays = [due.timestamp() - now / 1000 for _, due in await target.scheduled()]
    assert all(3590 < delay < 3603 for delay in delays)


@pytest.mark.parametrize(("from_kind", "to_kind"), ways())
async def test_a_move_that_dies_between_adding_and_removing_adds_nothing_twice(
    place: Place, from_kind: str, to_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "LOCK_MS", 50)
    source, target = await place.queue(from_kind, "old.jobs"), await place.queue(to_kind, "new.jobs")
    for n in range(5):
        await source.add("task", {"n": n})
    moved_from = bridge._source_of(source)
    await moved_from.open()
    batch = await anext(moved_from.waiting(None))
    assert await target_of(source, target).add_new(batch) == 5
    await moved_from.backend.transport.close()  # type: ignore[attr-defined]  # here it dies
    moved_from._renewer_transport.close()  # type: ignore[attr-defined]
    known = 0

    async def move_the_rest() -> bool:
        nonlocal known
        moved = await move_jobs(source, target)
        assert moved.waiting + moved.scheduled == moved.known  # a lock that just ends puts a job off
        known += moved.known
        return not await unfinished(source)

    await until(move_the_rest, "the source is empty")
    assert known == 5
    assert [payload["n"] for _, _, payload in await place.collect(to_kind, "new.jobs")] == list(range(5))


async def test_a_job_comes_back_from_bullmq_as_it_was(place: Place) -> None:
    first, middle = await place.queue("stream", "first"), await place.queue("bullmq", "middle")
    last = await place.queue("list", "last")
    sent = await first.add("task", {"n": 1}, user_id="u7", correlation_id="c1", source="api", max_attempts=4)
    await move_jobs(first, middle)
    (job,) = await middle.get_waiting()
    assert (job.name, job.opts["attempts"]) == ("task", 4)
    await move_jobs(middle, last)
    with_client = await transport_of(last).run(_range(last))
    back = Envelope.from_bytes(with_client[0])
    assert (back.job_id, back.task_type, back.payload) == (sent.job_id, "task", {"n": 1})
    assert (back.meta.as_dict(), back.attempts, back.max_attempts) == (
        {**sent.meta.as_dict(), "moves": 2},
        0,
        4,
    )


def _range(queue: ListQueue) -> Any:
    from toril.commands import list_worker

    return list_worker.waiting(queue.keys, 0, -1)


async def test_options_that_only_bullmq_knows_travel_along(place: Place) -> None:
    source, target = await place.queue("bullmq", "old"), await place.queue("stream", "new")
    await source.add("task", {"n": 1}, priority=5, backoff=Backoff.fixed(7), attempts=9)
    await move_jobs(source, target)
    seen: list[Envelope] = []

    async def handle(envelope: Envelope) -> None:
        seen.append(envelope)

    worker = StreamWorker("new", handle, redis=place.url, prefix=place.prefix)
    async with asyncio.timeout(20), worker:
        await worker.run_until_idle()
    (envelope,) = seen
    assert envelope.max_attempts == 9
    assert envelope.extra["opts"]["priority"] == 5
    assert envelope.extra["opts"]["backoff"]["delay"] == 7000


async def test_only_as_many_as_asked_for_are_moved(place: Place) -> None:
    source, target = await place.queue("list", "old"), await place.queue("stream", "new")
    await source.add_bulk([("task", {"n": n}) for n in range(10)])
    await source.add("task", delay=60)
    assert await move_jobs(source, target, limit=4) == Moved(4, 0, 0)
    assert (await unfinished(source), await unfinished(target)) == (7, 4)


async def test_a_queue_is_not_moved_onto_itself(place: Place) -> None:
    queue = await place.queue("list", "old")
    with pytest.raises(InvalidOption, match="target"):
        await move_jobs(queue, queue)


async def test_a_queue_with_schedulers_is_left_alone(place: Place, prefix: str) -> None:
    source, target = await place.queue("bullmq", "old"), await place.queue("list", "new")
    await transport_of(source).run(plain(int, "ZADD", source.keys.repeat, 1, "nightly"))
    with pytest.raises(InvalidOption, match="schedulers"):
        await move_jobs(source, target)


async def test_an_id_that_bullmq_cannot_take_is_changed_and_still_arrives_once(place: Place) -> None:
    source, target = await place.queue("list", "old"), await place.queue("bullmq", "new")
    for job_id in ("17", "a:b", "meta"):
        await source.add("task", {}, job_id=job_id)
    assert await move_jobs(source, target) == Moved(3, 0, 0)
    assert sorted(job.id for job in await target.get_waiting()) == ["moved-17", "moved-a-b", "moved-meta"]


async def test_data_that_is_no_object_and_a_meta_of_somebody_else_survive(place: Place) -> None:
    source, target = await place.queue("bullmq", "old"), await place.queue("stream", "new")
    await source.add("list", [1, 2, 3])
    await source.add("odd", {"_meta": {"color": "red"}, "n": 1})
    await move_jobs(source, target)
    jobs = {name: payload for _, name, payload in await place.collect("stream", "new")}
    assert jobs["list"] == {"data": [1, 2, 3]}
    assert jobs["odd"]["n"] == 1
    assert jobs["odd"]["_meta"] == {"color": "red"}


async def test_a_scheduled_message_of_somebody_else_is_carried_and_one_that_cannot_be_read_is_buried(
    place: Place,
) -> None:
    source, target = await place.queue("list", "old"), await place.queue("stream", "new")
    transport = transport_of(source)
    spaced = json.dumps(Envelope.new("task", {"n": 1}).as_dict())
    for text in ("{", spaced, "[]"):
        await transport.run(plain(int, "ZADD", source.keys.scheduled, 10**13, text))
    assert await move_jobs(source, target) == Moved(waiting=0, scheduled=1, known=0)
    assert (await unfinished(source), await unfinished(target)) == (0, 1)
    letters = [letter async for letter in source.dead_letters()]
    assert {letter.envelope.payload["raw"] for letter in letters} == {"{", "[]"}


@pytest.mark.parametrize(("from_kind", "to_kind"), ways())
async def test_jobs_can_go_there_and_back_and_there_again(place: Place, from_kind: str, to_kind: str) -> None:
    here, there = await place.queue(from_kind, "here.jobs"), await place.queue(to_kind, "there.jobs")
    for n in range(3):
        await here.add("task", {"n": n})
    for source, target in ((here, there), (there, here), (here, there)):
        assert await move_jobs(source, target) == Moved(waiting=3, scheduled=0, known=0)
    assert [payload["n"] for _, _, payload in await place.collect(to_kind, "there.jobs")] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_two_messages_with_one_id_are_two_jobs(place: Place, kind: str) -> None:
    source, target = await place.queue(kind, "old"), await place.queue("bullmq", "new")
    for n in range(2):
        await source.add("task", {"n": n}, job_id="same")
    moved = await move_jobs(source, target)
    assert (moved.waiting + moved.scheduled, moved.known) == (
        2,
        0,
    )  # the job of the same id on a list waits a moment
    jobs = [*await target.get_waiting(), *await target.get_delayed()]
    assert sorted(job.data["n"] for job in jobs) == [0, 1]


async def test_a_job_whose_id_is_taken_gets_another(place: Place) -> None:
    source, target = await place.queue("stream", "old"), await place.queue("bullmq", "new")
    await target.add("task", {"who": "first"}, job_id="same")
    await source.add("task", {"who": "second"}, job_id="same")
    assert await move_jobs(source, target) == Moved(1, 0, 0)
    jobs = await place.collect("bullmq", "new")
    assert [payload["who"] for _, _, payload in jobs] == ["first", "second"]
    assert jobs[0][0] == "same"
    assert jobs[1][0].startswith("same-")


async def test_fields_that_bullmq_has_no_place_for_come_back(place: Place) -> None:
    first, middle, last = (
        await place.queue("list", "first"),
        await place.queue("bullmq", "middle"),
        await place.queue("list", "last"),
    )
    sent = Envelope.new("task", {"_meta": {"mine": 1}, "n": 2})
    sent = dataclasses.replace(sent, extra={"tenant": "blue"})
    await first.add(sent)
    await move_jobs(first, middle)
    await move_jobs(middle, last)
    back = Envelope.from_bytes((await transport_of(last).run(_range(last)))[0])
    assert (back.payload, back.extra["tenant"]) == (sent.payload, "blue")


async def test_data_that_is_no_object_comes_back_to_bullmq_as_it_was(place: Place) -> None:
    source, middle = await place.queue("bullmq", "old"), await place.queue("stream", "middle")
    await source.add("list", [1, 2, 3])
    await move_jobs(source, middle)
    await move_jobs(middle, source)
    (job,) = await source.get_waiting()
    assert job.data == [1, 2, 3]


async def test_a_retry_keeps_the_time_that_is_left(place: Place) -> None:
    source, target = await place.queue("bullmq", "old"), await place.queue("list", "new")
    await source.add("task", {}, attempts=5, backoff=Backoff.fixed(3600))
    failed = asyncio.Event()

    async def handle(job: Any) -> None:
        raise TransientError("not yet")

    worker = Worker("old", handle, redis=place.url, prefix=place.prefix)
    worker.on("retrying", lambda *_: failed.set())
    async with asyncio.timeout(20), worker:
        await failed.wait()
    transport = transport_of(source)
    (job,) = await source.get_delayed()
    # As if it had been added long ago: the time of its retry does not follow from that.
    await transport.run(plain(int, "HSET", source.keys.job(job.id), "timestamp", 1_600_000_000_000))
    await move_jobs(source, target)
    ((envelope, due),) = await target.scheduled()
    assert envelope.attempts == 1
    assert 3500 < due.timestamp() - await transport.now_ms() / 1000 <= 3601


async def test_jobs_of_flows_stay_where_they_are(place: Place) -> None:
    source, target = await place.queue("bullmq", "old"), await place.queue("list", "new")
    child = FlowNode("child", queue="old", data={})
    async with FlowProducer(redis=place.url, prefix=place.prefix) as flows:
        await flows.add(FlowNode("parent", queue="parents", data={}, children=[child]))
    with pytest.raises(InvalidOption, match="belongs to a flow"):
        await move_jobs(source, target)
    counts = await source.get_job_counts()
    assert (counts.waiting, counts.active) == (1, 0)
    assert await unfinished(target) == 0


async def test_a_move_whose_target_cannot_write_gives_jobs_back_at_once(
    place: Place, start_valkey: Callable[..., Server]
) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    source = await place.queue("list", "old")
    await source.add_bulk([("task", {"n": n}) for n in range(3)])
    async with Queue("new", redis=server.url, prefix=place.prefix) as target:
        with server.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(TorilError, match="maxmemory"):
                await move_jobs(source, target)
            counts = await source.counts()
            assert (counts.waiting, counts.active) == (3, 0)
            client.config_set("maxmemory", 0)
        assert await move_jobs(source, target) == Moved(3, 0, 0)
        assert await unfinished(target) == 3


async def test_jobs_that_are_active_elsewhere_are_counted(place: Place) -> None:
    source, target = await place.queue("stream", "old"), await place.queue("list", "new")
    await source.add_bulk([("task", {"n": n}) for n in range(3)])
    begun = asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = StreamWorker("old", handle, redis=place.url, prefix=place.prefix)
    await worker.start()
    await begun.wait()
    moved = await move_jobs(source, target)
    assert (moved.waiting, moved.in_hand) == (2, 1)
    await worker.stop(timeout=0)


async def test_messages_that_are_hard_to_write_are_carried_or_buried(place: Place) -> None:
    source, target = await place.queue("stream", "old"), await place.queue("bullmq", "new")
    transport = transport_of(source)
    text = json.dumps(Envelope.new("task", {"n": 1}).as_dict())
    half, endless = text.replace("1}", '"\\ud800"}'), text.replace("1}", "1e999}")
    for odd in (half, endless):
        await transport.run(plain(str, "XADD", source.keys.stream, "*", "envelope", odd))
    await transport.run(plain(int, "ZADD", source.keys.scheduled, 10**13, endless))
    assert await move_jobs(source, target) == Moved(waiting=1, scheduled=0, known=0)
    (job,) = await target.get_waiting()
    assert job.data["n"] == "\ud800"
    assert (await source.counts()).dead == 2
    assert await unfinished(source) == 0
