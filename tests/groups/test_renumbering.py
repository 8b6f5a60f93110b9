"""Ticks are renumbered before they reach BullMQ's highest priority, and the order stays the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.waiting import until_equal
from toril import JobOptions, NewJob, Queue, Worker
from toril.commands import worker
from toril.commands.command import plain
from toril.commands.worker import Pickup, Settlement
from toril.transport import AsyncTransport

LIGHT = 1 / 16  # 256 virtual times per job
AT_ONCE = 400
MOST = 2**21
KEPT = 200  # jobs that wait at any time


async def take(queue: Queue, transport: AsyncTransport, count: int, *, complete: bool = True) -> list[str]:
    """Fetches jobs as a worker does, and completes them."""
    pickup = Pickup(token=uuid.uuid4().hex, lock_ms=60_000)
    now_ms = await transport.now_ms()
    reply = await transport.run(worker.settle(queue.keys, [], capacity=count, pickup=pickup, now_ms=now_ms))
    ids = [job_id for job_id, _ in reply.jobs]
    ends = [Settlement(one, "completed", pickup.token, "null") for one in ids] if complete else []
    await transport.run(worker.settle(queue.keys, ends, capacity=0, pickup=pickup, now_ms=now_ms))
    return ids


async def add(queue: Queue, group: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    await queue.add_bulk([NewJob("n", {}, JobOptions(group=group, job_id=f"{group}-{n}")) for n in numbers])


async def serve(queue: Queue, transport: AsyncTransport, jobs: int) -> list[str]:
    """Adds and takes jobs of the group `a`, so that some wait at any time."""
    await queue.set_group_weight("a", LIGHT)
    await add(queue, "a", 0, KEPT)
    order: list[str] = []
    for number in range(KEPT, jobs, AT_ONCE):
        await add(queue, "a", number, AT_ONCE)
        while len(order) < number + AT_ONCE - KEPT:
            order += await take(queue, transport, 100)
    return order


async def was_renumbered(queue: Queue, transport: AsyncTransport) -> bool:
    return await transport.run(plain(bool, "HEXISTS", queue.keys.toril("group-clock"), "shift"))


async def test_groups_are_served_in_turns_beyond_the_highest_priority(queue: Queue, valkey_url: str) -> None:
    jobs = MOST // 256 + 4000 + KEPT
    async with AsyncTransport(valkey_url) as transport:
        order = await serve(queue, transport, jobs)
        assert order == [f"a-{n}" for n in range(len(order))]
        scores = await transport.run(plain(list, "ZRANGE", queue.keys.prioritized, 0, -1, "WITHSCORES"))
        ticks = [int(float(one)) >> 32 for one in scores[1::2]]
        assert len(ticks) == KEPT and max(ticks) < MOST // 2 + AT_ONCE * 256
        for job_id, tick in zip(scores[::2], ticks, strict=True):
            stored = await transport.run(plain(int, "HGET", queue.keys.job(job_id.decode()), "priority"))
            assert stored == tick
        await add(queue, "b", 0, 20)
        following = await take(queue, transport, 60)
    assert {f"b-{n}" for n in range(20)} < set(following)


async def test_a_job_that_was_active_meanwhile_runs_no_later_than_one_that_is_added_then(
    queue: Queue, valkey_url: str
) -> None:
    async with AsyncTransport(valkey_url) as transport:
        order = await serve(queue, transport, 4000)
        (late,) = await take(queue, transport, 1, complete=False)
        number = 1 + max(int(one.removeprefix("a-")) for one in (*order, late)) + KEPT
        while not await was_renumbered(queue, transport):
            await add(queue, "a", number, AT_ONCE)
            number += AT_ONCE
            taken = 0
            while taken < AT_ONCE:
                taken += len(await take(queue, transport, 100))
        # It is given back, as by a worker that stops.
        token = await transport.run(plain(bytes, "GET", queue.keys.lock(late)))
        pickup = Pickup(token="t", lock_ms=60_000)
        back = Settlement(late, "wait", token.decode())
        await transport.run(worker.settle(queue.keys, [back], capacity=0, pickup=pickup, now_ms=1))
        await add(queue, "a", number, AT_ONCE)
        waiting = await transport.run(plain(list, "ZRANGE", queue.keys.prioritized, 0, -1))
        place = waiting.index(late.encode())
    assert place < len(waiting) - 1


async def test_held_jobs_are_renumbered_when_they_are_released(
    queue: Queue, make_worker: Callable[..., Worker], valkey_url: str
) -> None:
    await queue.pause_group("b")
    await add(queue, "b", 0, 5)
    async with make_worker():
        await until_equal(lambda: _delayed(queue), 5)
    async with AsyncTransport(valkey_url) as transport:
        clock = queue.keys.toril("group-clock")
        await transport.run(plain(int, "HSET", clock, "clock", 1_000_000, "offset", 999_000))
        await queue.resume_group("b")
        scores = await transport.run(plain(list, "ZRANGE", queue.keys.prioritized, 0, -1, "WITHSCORES"))
    assert [one.decode() for one in scores[::2]] == [f"b-{n}" for n in range(5)]
    assert {int(float(one)) >> 32 for one in scores[1::2]} == {1}


async def _delayed(queue: Queue) -> int:
    return (await queue.get_job_counts()).delayed
