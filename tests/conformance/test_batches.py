"""A handler that takes a list of jobs, on every kind of queue: who is in a batch, and how each job ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance import process_bound_handlers
from tests.conformance.kinds import Kind
from tests.waiting import until
from toril import Batch, TransientError
from toril.errors import Postpone, RateLimitError
from toril.jobs import JobBatch

pytestmark = pytest.mark.timeout(60)

SMALL = Batch(size=10, wait=0.05)


async def run_all(kind: Kind, handler: Any, **options: Any) -> None:
    async with asyncio.timeout(30), kind.worker(handler, **{"batch": SMALL, **options}) as worker:
        await worker.run_until_idle()


def numbers(jobs: list[Any]) -> list[int]:
    return [Kind.payload(job)["n"] for job in jobs]


async def test_jobs_come_in_batches_in_the_order_of_the_queue(kind: Kind) -> None:
    batches: list[list[int]] = []

    async def handle(jobs: list[Any]) -> None:
        batches.append(numbers(jobs))

    await kind.add_many([{"n": n} for n in range(25)])
    await run_all(kind, handle)
    assert batches == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]
    assert await kind.unfinished() == 0


async def test_a_batch_may_be_larger_than_one_fetch(kind: Kind) -> None:
    sizes: list[int] = []

    def handle(jobs: list[Any]) -> None:
        sizes.append(len(jobs))

    await kind.add_many([{"n": n} for n in range(250)])
    await run_all(kind, handle, batch=Batch(size=240, wait=0.05))
    assert sizes == [240, 10]


async def test_jobs_wait_for_others_in_the_queue_and_not_in_the_worker(kind: Kind) -> None:
    batches: list[list[int]] = []
    called = asyncio.Event()

    async def handle(jobs: list[Any]) -> None:
        batches.append(numbers(jobs))
        called.set()

    async with asyncio.timeout(30), kind.worker(handle, batch=Batch(size=3, wait=60)) as worker:
        for n in range(2):
            await kind.add("task", {"n": n})
        loop: Any = worker._lifecycle.runtime.fetch_loop  # type: ignore[union-attr]
        await until(lambda: loop._waiting_since, "the worker has seen the jobs")
        assert worker.health().jobs == 0 and await kind.unfinished() == 2
        await kind.add("task", {"n": 2})
        await called.wait()
    assert batches == [[0, 1, 2]]


async def test_fewer_jobs_than_the_smallest_batch_are_not_run(kind: Kind) -> None:
    batches: list[list[int]] = []
    called = asyncio.Event()

    async def handle(jobs: list[Any]) -> None:
        batches.append(numbers(jobs))
        called.set()

    batch = Batch(size=10, wait=0.01, min_size=3)
    async with asyncio.timeout(30), kind.worker(handle, batch=batch):
        await kind.add_many([{"n": 0}, {"n": 1}])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(called.wait(), 0.3)
        await kind.add("task", {"n": 2})
        await called.wait()
    assert batches == [[0, 1, 2]]


async def test_each_job_of_a_batch_ends_in_its_own_way(kind: Kind) -> None:
    attempts: dict[int, int] = {}

    async def handle(jobs: JobBatch[Any]) -> None:
        for job, n in zip(jobs, numbers(jobs), strict=True):
            attempts[n] = attempts.get(n, 0) + 1
            if n == 1:
                jobs.fail(job, ValueError("bad row"))
            elif n == 2 and attempts[n] == 1:
                jobs.fail(job, TransientError("busy"))
            elif n == 3 and attempts[n] == 1:
                jobs.fail(job, Postpone(0.01))
            elif n == 4 and attempts[n] == 1:
                jobs.fail(job, RateLimitError(0.05))

    await kind.add_many([{"n": n} for n in range(6)])
    await run_all(kind, handle, **kind.limited)
    while await kind.unfinished():  # `run_until_idle` does not wait for postponed jobs
        await run_all(kind, handle, **kind.limited)
    assert attempts == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 1}
    assert [(one.payload["n"], one.reason) for one in await kind.failed_jobs()] in (
        [(1, "bad row")],
        [(1, "ValueError: bad row")],
    )


async def test_an_error_of_the_handler_is_that_of_the_jobs_without_their_own(kind: Kind) -> None:
    async def handle(jobs: JobBatch[Any]) -> None:
        jobs.fail(jobs[0], ValueError("the first"))
        raise ValueError("the others")

    await kind.add_many([{"n": n} for n in range(3)])
    await run_all(kind, handle)
    reasons = {one.payload["n"]: one.reason for one in await kind.failed_jobs()}
    assert [reasons[n].removeprefix("ValueError: ") for n in range(3)] == [
        "the first",
        "the others",
        "the others",
    ]


async def test_a_batch_runs_in_a_thread_and_in_a_process(kind: Kind) -> None:
    await kind.add_many([{"n": n} for n in range(8)])
    await run_all(kind, process_bound_handlers.odd_jobs_fail, executor="process")
    assert sorted(one.payload["n"] for one in await kind.failed_jobs()) == [1, 3, 5, 7]
    await kind.add_many([{"n": n} for n in range(10, 14)])
    await run_all(kind, process_bound_handlers.odd_jobs_fail, executor="thread")
    assert sorted(one.payload["n"] for one in await kind.failed_jobs()) == [1, 3, 5, 7, 11, 13]
    assert await kind.unfinished() == 0


async def test_jobs_of_one_name_share_a_batch(kind: Kind) -> None:
    batches: list[list[str]] = []

    async def handle(jobs: list[Any]) -> None:
        batches.append([getattr(one, "name", None) or one.task_type for one in jobs])

    for name in ("a", "b", "a", "b", "a"):
        await kind.add(name, {"n": 0})
    await run_all(kind, handle, batch=Batch(size=10, wait=0.1, by="name"))
    assert sorted(batches) == [["a"] * 3, ["b"] * 2]


async def test_a_stop_returns_the_jobs_of_a_batch(kind: Kind) -> None:
    begun = asyncio.Event()

    async def handle(_: list[Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    await kind.add_many([{"n": n} for n in range(5)])
    async with asyncio.timeout(30):
        worker = kind.worker(handle, batch=SMALL)
        await worker.start()
        await begun.wait()
        await worker.stop(timeout=0)
    assert await kind.unfinished() == 5


async def test_several_batches_run_at_once(kind: Kind) -> None:
    sizes: list[int] = []
    both = asyncio.Barrier(2)

    async def handle(jobs: list[Any]) -> None:
        sizes.append(len(jobs))
        await both.wait()

    await kind.add_many([{"n": n} for n in range(20)])
    await run_all(kind, handle, concurrency=2)
    assert sizes == [10, 10]


async def test_an_overdue_batch_fails_all_its_jobs(kind: Kind) -> None:
    async def handle(_: list[Any]) -> None:
        await asyncio.Event().wait()

    await kind.add_many([{"n": n} for n in range(3)], attempts=1)
    await run_all(kind, handle, job_timeout=0.05)
    assert len([one for one in await kind.failed_jobs() if "ran longer than" in one.reason]) == 3
