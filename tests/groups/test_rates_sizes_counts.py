"""Rate, maximum size and counts of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.groups import rates
from tests.groups.orders import add_tenants
from tests.waiting import until_equal
from toril import Deduplication, GroupLimits, JobOptions, JobState, NewJob, Queue, RateLimit, Worker
from toril.commands.command import plain
from toril.errors import GroupFull
from toril.protocol.group_limits import GroupCounts
from toril.transport import AsyncTransport

MakeWorker = Callable[..., Worker]
HOSTILE = ["a:b", 'quote"', "back\\slash", "{tag}", "0:0", "ünïcode 🎉", " ", '"group":{"id":"other"}']


@pytest.mark.timeout(90)
async def test_a_rate_is_never_exceeded_in_any_period(valkey_url: str, prefix: str) -> None:
    for usage in (await rates.run(valkey_url, 4, prefix)).values():
        assert usage.most_in_a_period == usage.limit.count
        assert usage.share > 0.5  # how much is used is measured by the command, on a quiet machine


async def test_a_group_at_its_rate_costs_one_look_at_a_time(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    """Held jobs are not moved again and again: of many, one has the time at which the group opens."""
    await queue.set_group_limits("a", GroupLimits(rate_limit=RateLimit(10, 0.3)))
    await add_tenants(queue, {"a": 100})
    async with make_worker(concurrency=50):
        await until_equal(lambda: _completed(queue), 100)
    async with AsyncTransport(valkey_url) as transport:
        entries = await transport.run(plain(list, "XRANGE", queue.keys.events, "-", "+"))
    moved = sum(b"delayed" in fields and b"jobId" in fields for _, fields in entries)
    assert moved < 300  # each held once and released once, and one look for each period


async def _completed(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed


async def test_a_group_holds_no_more_jobs_than_its_maximum_size(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await add_tenants(queue, {"a": 2})
    await queue.set_group_limits("a", GroupLimits(max_size=4))  # those that wait already count
    await queue.add("n", {}, group="a", delay=3600)
    await queue.add("n", {}, group="a", job_id="last")
    with pytest.raises(GroupFull, match="its group is full"):
        await queue.add("n", {}, group="a")
    again = await queue.add("n", {}, group="a", job_id="last")
    assert not again.added  # a job that exists is not refused
    await queue.add("n", {}, group="b")
    async with make_worker() as worker:
        await worker.run_until_idle()
        await until_equal(lambda: _completed(queue), 4)
    added = [await queue.add("n", {}, group="a") for _ in range(3)]
    with pytest.raises(GroupFull):
        await queue.add("n", {}, group="a")
    await added[0].remove()  # by a client that knows nothing of sizes
    assert (await queue.add("n", {}, group="a")).added


async def test_of_a_bulk_add_only_what_exceeds_the_maximum_size_is_refused(queue: Queue) -> None:
    await queue.set_group_limits(None, GroupLimits(max_size=3))
    with pytest.raises(GroupFull):
        await queue.add_bulk([NewJob("n", {}, JobOptions(group="a")) for _ in range(5)])
    assert (await queue.get_job_counts()).prioritized == 3


async def test_jobs_that_a_plain_worker_fetched_do_not_fill_a_group(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.set_group_limits("a", GroupLimits(max_size=2))
    await add_tenants(queue, {"a": 2})
    async with AsyncTransport(valkey_url) as transport:  # what Node's worker does with them
        await transport.run(plain(list, "ZPOPMIN", queue.keys.prioritized, 2))
    assert (await queue.add("n", {}, group="a")).added


async def test_counts_of_groups(queue: Queue, make_worker: MakeWorker) -> None:
    await queue.pause_group("held")
    await add_tenants(queue, {"held": 1200})
    async with make_worker(concurrency=10):
        await until_equal(lambda: _delayed(queue), 1200)
    await add_tenants(queue, {"waiting": 3})
    await queue.add("n", {}, group="late", delay=3600)
    await queue.add("n", {}, delay=3600)
    await queue.add("n", {}, group="waiting", deduplication=Deduplication("once"))
    assert await queue.get_group_counts() == {
        "held": GroupCounts(held=1200),
        "late": GroupCounts(delayed=1),
        "waiting": GroupCounts(waiting=4),
    }
    assert await queue.get_paused_groups() == ["held"]


async def _delayed(queue: Queue) -> int:
    return (await queue.get_job_counts()).delayed


async def test_any_text_is_the_name_of_a_group(queue: Queue, make_worker: MakeWorker) -> None:
    await queue.set_group_limits(None, GroupLimits(concurrency=1, max_size=3))
    for name in HOSTILE:
        await queue.set_group_limits(
            name, GroupLimits(concurrency=1, rate_limit=RateLimit(50, 1.0), max_size=3)
        )
        await queue.add_bulk([NewJob("n", {}, JobOptions(group=name)) for _ in range(3)])
    assert set(await queue.get_group_limits()) == {None, *HOSTILE}
    counts = await queue.get_group_counts()
    assert counts == {name: GroupCounts(waiting=3) for name in sorted(HOSTILE)}
    await queue.pause_group(HOSTILE[0])
    async with make_worker(concurrency=50):
        await until_equal(lambda: _completed(queue), 3 * len(HOSTILE) - 3)
        assert await queue.get_group_counts() == {HOSTILE[0]: GroupCounts(held=3)}
        await queue.resume_group(HOSTILE[0])
        await until_equal(lambda: _completed(queue), 3 * len(HOSTILE))


async def test_held_jobs_can_be_removed_drained_and_promoted(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.pause_group("a")
    await add_tenants(queue, {"a": 10})
    async with make_worker(concurrency=5):
        await until_equal(lambda: _delayed(queue), 10)
        first = await queue.get_job("a-0")
        assert first is not None
        await first.promote()
        await until_equal(first.get_state, JobState.DELAYED)  # its group is paused: held again
        await first.remove()
        assert await queue.drain(delayed=True) == 9
        await queue.resume_group("a")
        last = await queue.add("n", {}, group="a")
        await until_equal(last.get_state, JobState.COMPLETED)


async def test_limits_that_another_program_wrote_have_no_effect(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    texts: list[Any] = ["no json", "[]", '"text"', '{"concurrency": "no"}', '{"max": 1}', '{"size": "x"}']
    async with AsyncTransport(valkey_url) as transport:
        for number, text in enumerate(texts):
            await transport.run(plain(int, "HSET", queue.keys.toril("group-limits"), f"g{number}", text))
    await add_tenants(queue, {f"g{number}": 3 for number in range(len(texts))})
    assert set((await queue.get_group_limits()).values()) == {GroupLimits()}
    async with make_worker(concurrency=10):
        await until_equal(lambda: _completed(queue), 3 * len(texts))


async def test_a_group_without_a_maximum_size_is_not_counted_any_more(queue: Queue, valkey_url: str) -> None:
    await queue.set_group_limits("a", GroupLimits(max_size=4))
    await add_tenants(queue, {"a": 3})
    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    async with AsyncTransport(valkey_url) as transport:
        left = await transport.run(plain(list, "KEYS", queue.keys.toril("group:waiting:*")))
        assert left == []
        await queue.set_group_limits(None, GroupLimits(max_size=3))
        await queue.set_group_limits("a", None)  # those of all groups are its own now
        with pytest.raises(GroupFull):
            await queue.add("n", {}, group="a")
