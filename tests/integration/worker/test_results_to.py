"""`results_to`: the result of each completed job becomes a job of another queue, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.integration.worker import importable_handlers
from tests.integration.worker.conftest import QUEUE, until_state
from tests.waiting import until
from toril import (
    Batch,
    Deduplication,
    GroupLimits,
    InvalidOption,
    Job,
    JobOptions,
    ListWorker,
    ManualWorker,
    Queue,
    ResultsTo,
    StreamWorker,
    TransientError,
    Worker,
    WorkerOptions,
)
from toril.codecs import Codecs, Zstd
from toril.commands.command import plain
from toril.errors import CrossSlot
from toril.protocol.state import JobState
from toril.sync import Job as BlockingJob
from toril.transport import AsyncTransport

TARGET = "stored"


@pytest.fixture
async def target(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(TARGET, redis=valkey_url, prefix=prefix) as queue:
        yield queue


async def double(job: Job[Any]) -> int:
    return 2 * int(job.data["n"])


def double_in_a_thread(job: BlockingJob[Any]) -> int:
    return 2 * int(job.data["n"])


async def double_each(jobs: list[Job[Any]]) -> list[int]:
    return [2 * int(job.data["n"]) for job in jobs]


async def forwarded(target: Queue) -> list[Job[Any]]:
    return await target.get_jobs(["waiting", "prioritized", "delayed"], start=0, end=-1, ascending=True)


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (double, {"concurrency": 20}),
        (double, {"concurrency": 1}),
        (double_in_a_thread, {"concurrency": 5}),
        (importable_handlers.double, {"executor": "process"}),
        (double_each, {"batch": Batch(size=10, wait=0.05)}),
    ],
)
async def test_each_result_becomes_one_job(
    queue: Queue, target: Queue, valkey_url: str, prefix: str, handler: Any, options: Any
) -> None:
    jobs = await queue.add_bulk([("double", {"n": n}) for n in range(40)])
    async with Worker(
        QUEUE, handler, redis=valkey_url, prefix=prefix, results_to=TARGET, **options
    ) as worker:
        await worker.run_until_idle()
    found = await forwarded(target)
    assert sorted(job.data for job in found) == [2 * n for n in range(40)]
    assert {job.result_of for job in found} == {job.key for job in jobs}
    assert {job.name for job in found} == {"double"}
    assert (await queue.get_job_counts()).completed == 40


async def test_the_new_jobs_have_the_options_and_the_name_that_are_given(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    options = JobOptions(priority=3, attempts=7, remove_on_complete=True)
    await queue.add("double", {"n": 1})
    async with Worker(
        QUEUE, double, redis=valkey_url, prefix=prefix,
        results_to=ResultsTo(TARGET, name="store", options=options),
    ) as worker:  # fmt: skip
        await worker.run_until_idle()
    (job,) = await forwarded(target)
    assert (job.name, job.priority, job.max_attempts) == ("store", 3, 7)
    assert (await target.get_job_counts()).prioritized == 1

    delayed = ResultsTo(TARGET, options=JobOptions(delay=60))
    await queue.add("double", {"n": 2})
    async with Worker(QUEUE, double, redis=valkey_url, prefix=prefix, results_to=delayed) as worker:
        await worker.run_until_idle()
    assert (await target.get_job_counts()).delayed == 1


async def test_a_retried_job_has_one_result_and_a_failed_one_none(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        if job.data == "fails" or job.attempts_made == 0:
            raise TransientError("again")
        return str(job.data)

    await queue.add_bulk([("n", data, {"attempts": 2, "backoff": 0.001}) for data in ("fails", "succeeds")])
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, results_to=TARGET) as worker:
        await worker.run_until_idle()
    assert [job.data for job in await forwarded(target)] == ["succeeds"]
    counts = await queue.get_job_counts()
    assert (counts.completed, counts.failed) == (1, 1)


async def test_a_job_that_completes_again_has_another_result(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    job = await queue.add("n", {"n": 1}, job_id="the-same")
    async with Worker(QUEUE, double, redis=valkey_url, prefix=prefix, results_to=TARGET):
        await until_state(queue, job.id, "completed")
        await job.retry("completed")
        await until_state(queue, job.id, "completed")
    assert len(await forwarded(target)) == 2


async def test_a_worker_of_the_other_queue_is_woken_and_gets_the_result(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    received: list[int] = []

    async def receive(job: Job[int]) -> None:
        received.append(job.data)

    async with (
        Worker(TARGET, receive, redis=valkey_url, prefix=prefix, drain_delay=30),
        Worker(QUEUE, double, redis=valkey_url, prefix=prefix, results_to=TARGET),
    ):
        await queue.add("n", {"n": 21})
        await until(lambda: len(received) > 0, "the result was received")
    assert received == [42]


async def test_results_of_jobs_of_limited_groups_are_added_too(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.set_group_limits(None, GroupLimits(concurrency=1))
    await queue.add_bulk([("n", {"n": n}, {"group": f"g{n % 3}"}) for n in range(30)])
    async with Worker(
        QUEUE, double, redis=valkey_url, prefix=prefix, results_to=TARGET, concurrency=10
    ) as worker:
        await worker.run_until_idle()
    assert sorted(job.data for job in await forwarded(target)) == [2 * n for n in range(30)]


async def test_a_job_that_is_completed_by_hand_has_its_result_added(
    queue: Queue, target: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.add("n", {"n": 1})
    async with ManualWorker(QUEUE, redis=valkey_url, prefix=prefix, results_to=TARGET) as worker:
        job = await worker.get_next_job()
        assert job is not None
        await worker.complete(job, "by hand")
    assert [one.data for one in await forwarded(target)] == ["by hand"]


async def test_a_job_whose_lock_another_has_adds_nothing(
    queue: Queue, target: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    async def handle(job: Job[Any]) -> str:
        await transport.run(plain(bool, "SET", job.keys.lock(job.id), "of another"))
        return "refused"

    await queue.add("n")
    refusals: list[BaseException] = []
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, results_to=TARGET)
    worker.on("error", refusals.append)
    async with worker:
        await until(lambda: worker.health().jobs == 0 and bool(refusals), "the outcome was refused")
    assert (await queue.get_job_counts()).completed == 0
    assert await forwarded(target) == []


async def test_a_result_that_cannot_be_added_leaves_its_job_to_run_again(
    queue: Queue, target: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    await transport.run(plain(str, "SET", target.keys.wait, "no list"))
    job = await queue.add("n", {"n": 1})
    async with Worker(QUEUE, double, redis=valkey_url, prefix=prefix, results_to=TARGET):
        await until_state(queue, job.id, "delayed")
        found = await queue.get_job(job.id)
        assert found is not None and found.failed_reason is not None
        assert target.keys.wait in found.failed_reason
        assert found.attempts_made == 0
        await transport.run(plain(int, "DEL", target.keys.wait))
        await found.promote()
        await until_state(queue, job.id, "completed")
    assert [one.data for one in await forwarded(target)] == [2]


# --- what is refused before anything is sent ------------------------------------------------------------------


async def ignore(_: Any) -> None:
    """For workers that are never started."""


NOWHERE: Any = {"redis": "redis://localhost:1"}


@pytest.mark.parametrize(
    "options",
    [
        {"job_id": "one"},
        {"deduplication": Deduplication("one")},
        {"group": "g"},
        {"size_limit": 3},
    ],
)
def test_options_that_could_lose_a_result_are_refused(options: Any) -> None:
    with pytest.raises(InvalidOption, match=r"results_to\.options"):
        ResultsTo(TARGET, options=JobOptions(**options))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Worker(QUEUE, double, results_to=QUEUE, **NOWHERE),
        lambda: Worker(QUEUE, double, results_to="a:b", **NOWHERE),
        lambda: Worker(QUEUE, double, results_to=cast("Any", 5), **NOWHERE),
        lambda: Worker(QUEUE, double, results_to=TARGET, codecs=Codecs([Zstd()]), **NOWHERE),
        lambda: ListWorker(QUEUE, ignore, results_to=TARGET, **NOWHERE),
        lambda: StreamWorker(QUEUE, ignore, results_to=TARGET, **NOWHERE),
        lambda: WorkerOptions(results_to=""),
        lambda: ResultsTo(TARGET, options={"attempts": 1}),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(make: Any) -> None:
    with pytest.raises(InvalidOption):
        make()


def test_a_queue_in_another_slot_of_a_cluster_is_refused() -> None:
    with pytest.raises(CrossSlot):
        Worker(QUEUE, double, redis="redis+cluster://localhost:1", results_to=TARGET)
    Worker(QUEUE, double, redis="redis+cluster://localhost:1", prefix="{bull}", results_to=TARGET)


async def test_results_go_to_a_queue_of_the_same_slot_on_a_cluster(cluster_url: str, prefix: str) -> None:
    shared = f"{{{prefix}}}"
    async with (
        Queue(QUEUE, redis=cluster_url, prefix=shared) as queue,
        Queue(TARGET, redis=cluster_url, prefix=shared) as target,
    ):
        await queue.add_bulk([("n", {"n": n}) for n in range(10)])
        async with Worker(
            QUEUE, double, redis=cluster_url, prefix=shared, results_to=TARGET, concurrency=4
        ) as worker:
            await worker.run_until_idle()
        assert sorted(job.data for job in await forwarded(target)) == [2 * n for n in range(10)]
        states = [await job.get_state() for job in await queue.get_jobs(["completed"])]
        assert set(states) == {JobState.COMPLETED}
