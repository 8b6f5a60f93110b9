"""Batches of BullMQ jobs: results, refusals and deaths. tests/conformance/test_batches.py is for all kinds."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker import batch_process
from tests.integration.worker import importable_handlers as handlers
from tests.integration.worker.conftest import QUEUE
from tests.waiting import until
from toril import App, Batch, InvalidOption, Job, JobOptions, ListWorker, NewJob, Queue, Worker, sync
from toril.commands.command import plain
from toril.jobs import JobBatch
from toril.sync import Job as BlockingJob
from toril.transport import AsyncTransport

SMALL = Batch(size=10, wait=0.05)


async def results(queue: Queue, ids: list[str]) -> list[Any]:
    jobs = [await queue.get_job(one) for one in ids]
    return [None if one is None else one.failed_reason or one.returnvalue for one in jobs]


async def run_batches(queue: Queue, url: str, prefix: str, handler: Any, **options: Any) -> list[Any]:
    """Runs four jobs; returns the result or the reason of each."""
    jobs = [await queue.add("n", {"n": n}, attempts=1) for n in range(4)]
    options = {"batch": SMALL, **options}
    async with Worker(QUEUE, handler, redis=url, prefix=prefix, **options) as worker:
        await worker.run_until_idle()
    return await results(queue, [one.id for one in jobs])


async def test_results_belong_to_jobs_by_position(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(jobs: JobBatch[Job[Any]]) -> list[Any]:
        given = [job.data["n"] * 10 for job in jobs]
        jobs.reverse()  # positions are those of the batch as it was given
        return [*given[:2], ValueError("two"), given[3]]

    assert await run_batches(queue, valkey_url, prefix, handle) == [0, 10, "two", 30]


async def test_a_wrong_number_of_results_fails_the_batch(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(_: list[Job[Any]]) -> list[int]:
        return [1, 2, 3]

    found = await run_batches(queue, valkey_url, prefix, handle)
    problem = "the handler returned 3 results for a batch of 4 jobs; return None or a list of 4"
    assert found == [problem] * 4


async def test_a_text_is_not_a_list_of_results(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(_: list[Job[Any]]) -> str:
        return "four"

    found = await run_batches(queue, valkey_url, prefix, handle)
    assert all("returned str for a batch of 4" in one for one in found)


async def test_a_result_without_a_json_form_fails_its_own_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    def handle(jobs: list[BlockingJob[Any]]) -> list[Any]:
        return [object() if job.data["n"] == 1 else job.data["n"] for job in jobs]

    found = await run_batches(queue, valkey_url, prefix, handle)
    assert [found[0], *found[2:]] == [0, 2, 3] and "object" in found[1]


async def test_an_invalid_payload_fails_its_own_job(queue: Queue, valkey_url: str, prefix: str) -> None:
    seen: list[int] = []

    async def handle(jobs: list[Job[Any]]) -> None:
        seen.extend(job.data["n"] for job in jobs)

    schema = {"type": "object", "properties": {"n": {"maximum": 2}}}
    found = await run_batches(queue, valkey_url, prefix, handle, payload=schema)
    assert seen == [0, 1, 2] and found[:3] == [None] * 3 and found[3]


async def test_jobs_of_a_process_have_blocking_methods(queue: Queue, valkey_url: str, prefix: str) -> None:
    found = await run_batches(queue, valkey_url, prefix, handlers.double_all, executor="process")
    assert found == [0, 2, 4, 6]
    first = (await queue.get_jobs(["completed"]))[-1]
    assert first.progress == 50


async def test_a_process_that_dies_does_not_fail_the_other_jobs(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    jobs = [await queue.add("n", {"crash": n == 1}, attempts=3, backoff=0.01) for n in range(3)]
    batch = Batch(size=3, wait=0.05)
    async with Worker(
        QUEUE, handlers.crash_batch, redis=valkey_url, prefix=prefix, executor="process", batch=batch
    ) as worker:
        await worker.run_until_idle()
    found = await results(queue, [one.id for one in jobs])
    assert "died" in str(found[1])
    assert "died: the process" in str(found[0]) and "killed by SIGSEGV" in str(found[0])
    again = await queue.get_job(jobs[0].id)
    assert again is not None and again.attempts_made == 3  # transient: each attempt was made


async def test_a_cancelled_job_fails_alone(queue: Queue, valkey_url: str, prefix: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: list[Job[Any]]) -> None:
        begun.set()
        await may_end.wait()

    jobs = [await queue.add("n", {}) for _ in range(3)]
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, batch=SMALL) as worker:
        await begun.wait()
        assert worker.cancel(jobs[1].id, "not needed")
        may_end.set()
        await worker.run_until_idle()
    found = await results(queue, [one.id for one in jobs])
    assert found == [None, f"job {jobs[1].id} was cancelled: not needed", None]


async def test_delayed_jobs_join_batches_when_they_are_due(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    sizes: list[int] = []
    called = asyncio.Event()

    async def handle(jobs: list[Job[Any]]) -> None:
        sizes.append(len(jobs))
        called.set()

    async with Worker(
        QUEUE, handle, redis=valkey_url, prefix=prefix, batch=Batch(size=3, wait=60), drain_delay=0.1
    ):
        await queue.add_bulk([NewJob("n", {}, JobOptions(delay=0.5))] * 3)
        async with asyncio.timeout(20):
            await called.wait()
    assert sizes == [3]


async def test_a_paused_queue_gives_no_batches(queue: Queue, valkey_url: str, prefix: str) -> None:
    called = asyncio.Event()

    async def handle(_: list[Job[Any]]) -> None:
        called.set()

    await queue.pause()
    await queue.add_bulk([("n", {})] * 20)
    await queue.add("n", {}, priority=1)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, batch=SMALL, drain_delay=0.1):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(called.wait(), 0.3)
        await queue.resume()
        async with asyncio.timeout(20):
            await called.wait()


async def test_handlers_by_name_get_batches_of_their_names(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    seen: dict[str, list[str]] = {"a": [], "*": []}

    async def only_a(jobs: list[Job[Any]]) -> None:
        seen["a"] += [job.name for job in jobs]

    async def others(jobs: list[Job[Any]]) -> None:
        seen["*"] += [job.name for job in jobs]

    for name in ("a", "b", "a", "c"):
        await queue.add(name, {})
    by_name = {"a": only_a, "*": others}
    async with Worker(QUEUE, by_name, redis=valkey_url, prefix=prefix, batch=SMALL) as worker:
        await worker.run_until_idle()
    assert seen == {"a": ["a", "a"], "*": ["b", "c"]}


def test_the_blocking_worker_takes_batches(valkey_url: str, prefix: str) -> None:
    sizes: list[int] = []

    def handle(jobs: list[BlockingJob[Any]]) -> None:
        sizes.append(len(jobs))

    with sync.Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        queue.add_bulk([("n", {})] * 12)
        with sync.Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, batch=SMALL) as worker:
            worker.run_until_idle()
    assert sizes == [10, 2]


@pytest.mark.timeout(120)
async def test_killed_workers_lose_no_job_of_a_batch_and_complete_none_twice(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    database = tmp_path / "rows.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY)")
    jobs = await queue.add_bulk([("n", {"n": n}) for n in range(1000)])
    command = [sys.executable, "-m", batch_process.__name__, valkey_url, prefix, QUEUE, str(database)]
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(5):
            assert await process.stdout.readline()  # a batch is written, and its jobs are not settled yet
        process.kill()
        await process.communicate()
    last = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)

    async def all_completed() -> bool:
        return (await queue.get_job_counts()).completed == 1000

    try:
        await until(all_completed, "all jobs are completed")
    finally:
        last.terminate()
        await last.wait()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1000,)
    entries = await transport.run(plain(list, "XRANGE", queue.keys.events, "-", "+"))
    events = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
    completed = Counter(one[b"jobId"].decode() for one in events if one[b"event"] == b"completed")
    assert completed == Counter(one.id for one in jobs)


@pytest.mark.parametrize(
    "fields",
    [{"size": 0}, {"min_size": 0}, {"size": True}, {"size": 2, "min_size": 3}, {"wait": -1}, {"by": "job"}],
)
def test_invalid_batches_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="batch"):
        Batch(**fields)


def test_what_takes_no_batches_says_so_before_it_connects() -> None:
    async def handle(_: list[Any]) -> None: ...

    with pytest.raises(InvalidOption, match="only BullMQ queues have groups"):
        ListWorker(QUEUE, handle, redis="redis://localhost:1", batch=Batch(by="group"))
    with pytest.raises(InvalidOption, match="is not for apps"):
        App().queue(QUEUE, batch=Batch())
    with pytest.raises(InvalidOption, match="Batch"):
        Worker(QUEUE, handle, redis="redis://localhost:1", batch=100)  # type: ignore[arg-type]


async def test_only_a_job_of_the_batch_can_fail_in_it() -> None:
    batch = JobBatch(["a", "b"])
    with pytest.raises(InvalidOption, match="not in this batch"):
        batch.fail("c", ValueError())
    with pytest.raises(InvalidOption, match="give an exception"):
        batch.fail("a", "broken")  # type: ignore[arg-type]
