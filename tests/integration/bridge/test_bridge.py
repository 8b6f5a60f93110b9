"""Moving jobs between kinds of queue: nothing is lost, nothing is doubled, even when a move dies half-way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from toril import (
    Backoff,
    Envelope,
    InvalidOption,
    ListQueue,
    ListWorker,
    Queue,
    StreamQueue,
    StreamWorker,
    Worker,
)
from toril.producer import bridge
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
        now = await bridge.store_of(target).now_ms()
        delays = [due.timestamp() - now / 1000 for _, due in await target.scheduled()]
    assert all(3590 < delay < 3603 for delay in delays)


@pytest.mark.parametrize(("from_kind", "to_kind"), ways())
async def test_a_move_that_dies_between_arrival_and_departure_doubles_nothing(
    place: Place, from_kind: str, to_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "LOCK_MS", 50)
    source, target = await place.queue(from_kind, "old.jobs"), await place.queue(to_kind, "new.jobs")
    for n in range(5):
        await source.add("task", {"n": n})
    departure = bridge._departure(source)
    await departure.open()
    batch = await anext(departure.waiting(None))
    assert await bridge._arrival(source, target).take_in(batch) == 5
    await departure.source.store.close()  # type: ignore[attr-defined]  # here it dies
    departure._keeper.close()  # type: ignore[attr-defined]
    known = 0
    async with asyncio.timeout(20):
        while await unfinished(source):
            moved = await move_jobs(source, target)
            assert moved.waiting == moved.known
            known += moved.known
            await asyncio.sleep(0.03)
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
    with_client = await bridge.store_of(last).run(_range(last))
    back = Envelope.from_bytes(with_client[0])
    assert (back.job_id, back.task_type, back.payload) == (sent.job_id, "task", {"n": 1})
    assert (back.meta, back.attempts, back.max_attempts) == (sent.meta, 0, 4)


def _range(queue: ListQueue) -> Any:
    from toril.commands import list_work

    return list_work.waiting(queue.keys, 0, -1)


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
    from toril.commands._command import plain

    await bridge.store_of(source).run(plain(int, "ZADD", source.keys.repeat, 1, "nightly"))
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


async def test_a_scheduled_message_that_cannot_be_carried_is_named(place: Place) -> None:
    source, target = await place.queue("list", "old"), await place.queue("stream", "new")
    from toril.commands._command import plain

    store = bridge.store_of(source)
    await store.run(plain(int, "ZADD", source.keys.scheduled, 10**13, "{"))
    with pytest.raises(InvalidOption, match="cannot be read"):
        await move_jobs(source, target)
    await store.run(plain(int, "DEL", source.keys.scheduled))
    spaced = Envelope.new("task").to_bytes().replace(b'":', b'": ')
    await store.run(plain(int, "ZADD", source.keys.scheduled, 10**13, spaced))
    with pytest.raises(InvalidOption, match="canonical"):
        await move_jobs(source, target)
