"""Groups: the jobs of many tenants in one queue are started in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.groups.orders import FAIR_AFTER, SIZES, add_tenants, started
from toril import (
    Deduplication,
    InvalidOption,
    Job,
    JobOptions,
    ListQueue,
    NewJob,
    Queue,
    StreamQueue,
    TransientError,
    Worker,
)
from toril.commands.command import plain
from toril.transport import AsyncTransport

QUEUE = "tenants"


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, events_max_len=200_000) as queue:
        yield queue


async def run_all(url: str, prefix: str, **options: Any) -> None:
    async def handle(_: Job[Any]) -> None: ...

    async with Worker(QUEUE, handle, redis=url, prefix=prefix, **options) as worker:
        await worker.run_until_idle()


async def test_small_groups_do_not_wait_for_a_large_one(queue: Queue, valkey_url: str, prefix: str) -> None:
    await add_tenants(queue)
    concurrency = 100
    await run_all(valkey_url, prefix, concurrency=concurrency)
    order = await started(queue, valkey_url)
    assert len(order) == sum(SIZES.values())
    for group in ("small", "other"):
        assert order.index(f"{group}-99") < FAIR_AFTER + concurrency


async def test_the_jobs_of_a_group_start_in_the_order_in_which_they_were_added(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await add_tenants(queue, {"a": 40, "b": 30})
    await run_all(valkey_url, prefix)
    order = await started(queue, valkey_url)
    for group, size in (("a", 40), ("b", 30)):
        assert [one for one in order if one.startswith(group)] == [f"{group}-{n}" for n in range(size)]


async def test_a_group_of_weight_4_is_served_four_times_as_often(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.set_group_weight("b", 4)
    assert await queue.get_group_weights() == {"b": 4.0}
    await add_tenants(queue, {"a": 200, "b": 200})
    await run_all(valkey_url, prefix)
    first = Counter(one[0] for one in (await started(queue, valkey_url))[:100])
    assert 78 <= first["b"] <= 82


async def test_a_group_gets_no_credit_for_the_time_in_which_it_was_idle(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await add_tenants(queue, {"a": 100})
    begun = 0

    async def handle(_: Job[Any]) -> None:
        nonlocal begun
        begun += 1
        if begun == 50:
            await add_tenants(queue, {"b": 50})

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    first = Counter(one[0] for one in (await started(queue, valkey_url))[60:100])
    assert 18 <= first["a"] <= 22  # in turns from then on, and not 40 jobs of `b` at once


async def test_jobs_without_a_group_start_before_all_groups(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await add_tenants(queue, {"a": 3})
    await queue.add("n", {}, job_id="plain")
    await run_all(valkey_url, prefix)
    assert (await started(queue, valkey_url))[0] == "plain"


async def test_a_job_of_a_group_is_an_ordinary_job(queue: Queue, valkey_url: str, prefix: str) -> None:
    job = await queue.add("n", {}, group="tenant-7", attempts=2, backoff=0.01)
    found = await queue.get_job(job.id)
    assert found is not None
    assert (job.group, found.group, found.opts["group"]) == ("tenant-7", "tenant-7", {"id": "tenant-7"})
    assert found.priority == 16 and found.options.group == "tenant-7"
    assert (await queue.get_job_counts()).prioritized == 1
    attempts = 0

    async def handle(_: Job[Any]) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise TransientError("again")

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert attempts == 2 and (await queue.get_job_counts()).completed == 1


async def test_delayed_and_deduplicated_jobs_have_groups(queue: Queue, valkey_url: str, prefix: str) -> None:
    late = await queue.add("n", {}, group="a", delay=0.05)
    await queue.add("n", {}, group="a", deduplication=Deduplication("once"))
    again = await queue.add("n", {}, group="a", deduplication=Deduplication("once"))
    assert not again.added
    counts = await queue.get_job_counts()
    assert (counts.delayed, counts.prioritized) == (1, 1)

    async def handle(job: Job[Any]) -> str | None:
        return job.group

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix):
        assert await late.wait_until_finished(timeout=20) == "a"
        assert await again.wait_until_finished(timeout=20) == "a"


async def test_what_is_kept_about_groups_is_removed_with_them(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def groups() -> int:
        async with AsyncTransport(valkey_url) as transport:
            return await transport.run(plain(int, "ZCARD", queue.keys.toril("groups")))

    await queue.add_bulk([NewJob("n", {}, JobOptions(group=f"g{n}")) for n in range(500)])
    assert await groups() >= 499  # the clock may have passed the first one
    await run_all(valkey_url, prefix, concurrency=50)
    await queue.add("n", {}, group="next")
    assert await groups() == 1


@pytest.mark.parametrize("options", [{"priority": 1}, {"lifo": True}])
def test_an_order_of_its_own_cannot_be_combined_with_a_group(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="cannot be combined with group"):
        JobOptions(group="a", **options)


@pytest.mark.parametrize("weight", [0, -1, 17, "2", True])
async def test_impossible_weights_are_refused(queue: Queue, weight: Any) -> None:
    with pytest.raises(InvalidOption, match="weight"):
        await queue.set_group_weight("a", weight)


async def test_what_serves_no_groups_says_so_before_it_connects() -> None:
    nowhere = "redis://localhost:1"
    for kind in (ListQueue, StreamQueue):
        with pytest.raises(InvalidOption, match="group"):
            await kind(QUEUE, redis=nowhere).add("n", {}, group="a")  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="job of a scheduler"):
        await Queue(QUEUE, redis=nowhere).schedulers.upsert("s", every=10.0, options=JobOptions(group="a"))
