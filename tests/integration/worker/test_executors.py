"""Threads and processes: what a handler breaks there is its own job."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.kinds import ListKind, StreamKind
from tests.integration.worker import importable_handlers as handlers
from tests.integration.worker.conftest import QUEUE, until_state
from toril import Backoff, InvalidOption, JobFailed, Queue, Worker
from toril import Job as AsyncJob
from toril.errors import ResultTooLarge
from toril.sync import Job


async def test_plain_functions_run_in_threads_with_the_blocking_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    def handle(job: Job[Any]) -> str:
        job.update_progress(40)
        job.log("a line")
        return threading.current_thread().name

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        assert "toril-job" in await job.wait_until_finished(timeout=10)
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.progress == 40
    assert (await queue.get_job_logs(job.id)).lines == ["a line"]


async def test_a_process_runs_the_handler_and_reports_progress(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    job = await queue.add("n", {"n": 21})
    async with Worker(QUEUE, handlers.double, redis=valkey_url, prefix=prefix, executor="process"):
        assert await job.wait_until_finished(timeout=20) == 42
    found = await queue.get_job(job.id)
    assert found is not None and found.progress == 50


async def test_a_segfault_fails_one_job_and_not_the_worker(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    bad = await queue.add("n", {"crash": True}, attempts=1)
    good = await queue.add("n", {})
    async with Worker(QUEUE, handlers.crash, redis=valkey_url, prefix=prefix, executor="process"):
        assert await good.wait_until_finished(timeout=20) == "fine"
        await until_state(queue, bad.id, "failed")
    found = await queue.get_job(bad.id)
    assert found is not None and found.failed_reason is not None and "SIGSEGV" in found.failed_reason


async def test_a_memory_hog_fails_one_job_and_not_the_worker(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    bad = await queue.add("n", {"hog": True}, attempts=1)
    good = await queue.add("n", {})
    async with Worker(
        QUEUE, handlers.hog, redis=valkey_url, prefix=prefix, executor="process", max_jobs_per_process=1
    ):
        assert await good.wait_until_finished(timeout=20) == "fine"
        await until_state(queue, bad.id, "failed")
    found = await queue.get_job(bad.id)
    assert found is not None and "MemoryError" in "".join(found.stacktrace)


async def test_an_overdue_process_is_killed(queue: Queue, valkey_url: str, prefix: str) -> None:
    job = await queue.add("n", {}, attempts=1)
    async with Worker(
        QUEUE, handlers.hang, redis=valkey_url, prefix=prefix, executor="process", job_timeout=2.0
    ):
        await until_state(queue, job.id, "failed")
    found = await queue.get_job(job.id)
    assert found is not None and "ran longer than 2 s" in str(found.failed_reason)


async def test_processes_are_replaced_after_their_number_of_jobs(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    jobs = await queue.add_bulk([("n", {"i": i}) for i in range(4)])
    async with Worker(
        QUEUE, handlers.pid, redis=valkey_url, prefix=prefix, executor="process", max_jobs_per_process=2
    ):
        pids = [await job.wait_until_finished(timeout=20) for job in jobs]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_leaving_and_odd_errors_in_a_process_fail_the_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    first = await queue.add("leave", {}, attempts=1)
    second = await queue.add("odd", {}, attempts=1)
    named = {"leave": handlers.leave, "odd": handlers.odd}
    async with Worker(QUEUE, named, redis=valkey_url, prefix=prefix, executor="process"):
        await until_state(queue, first.id, "failed")
        await until_state(queue, second.id, "failed")
    found = await queue.get_job(second.id)
    assert found is not None and found.failed_reason is not None and "strange" in found.failed_reason


async def test_an_interrupt_that_a_thread_raises_fails_its_job_and_not_the_program(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    """Python raises Ctrl-C in the main thread only."""

    def handle(job: Job[Any]) -> str:
        if job.name == "interrupt":
            raise KeyboardInterrupt("by hand")
        return "fine"

    bad = await queue.add("interrupt", {}, attempts=3)
    good = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, executor="thread") as worker:
        assert await good.wait_until_finished(timeout=10) == "fine"
        await until_state(queue, bad.id, "failed")
        assert worker.state.value == "running"
    found = await queue.get_job(bad.id)
    assert found is not None and found.failed_reason == "KeyboardInterrupt: by hand"


async def test_an_error_is_classified_in_the_process_where_it_was_raised(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    throttled, hiding, odd = [
        await queue.add(name, {}, attempts=2, backoff=0.01) for name in ("throttled", "hiding", "odd")
    ]
    named = {"throttled": handlers.throttled, "hiding": handlers.hiding, "odd": handlers.odd}
    async with Worker(QUEUE, named, redis=valkey_url, prefix=prefix, executor="process"):
        assert await throttled.wait_until_finished(timeout=30) == 1
        assert await hiding.wait_until_finished(timeout=30) == 1
        await until_state(queue, odd.id, "failed")
    found = await queue.get_job(throttled.id)
    assert found is not None and "RateLimitError: slow down" in "".join(found.stacktrace)


async def test_many_threads_work_at_once(queue: Queue, valkey_url: str, prefix: str) -> None:
    together = threading.Barrier(5, timeout=15)

    def handle(_: Job[Any]) -> None:
        together.wait()

    await queue.add_bulk(
        [
            (
                "n",
                {"i": i},
            )
            for i in range(5)
        ]
    )
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=5) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 20)
    assert (await queue.get_job_counts()).completed == 5


async def test_a_retry_in_a_thread_waits_for_its_backoff(queue: Queue, valkey_url: str, prefix: str) -> None:
    def handle(job: Job[Any]) -> int:
        if job.attempts_made == 0:
            raise ConnectionError("first")
        return job.attempts_made

    job = await queue.add("n", {}, attempts=2, backoff=Backoff.fixed(0.05))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.returnvalue == 1


def with_session(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function around another."""

    @functools.wraps(handler)
    async def wrapper(job: Any) -> Any:
        return await handler(job, "session")

    return wrapper


def passed_on(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that returns the coroutine of another."""

    @functools.wraps(handler)
    def wrapper(job: Any) -> Any:
        return handler(job, "session")

    return wrapper


async def log_with(job: AsyncJob[Any], session: str) -> str:
    await job.log("a line")
    return session


async def first_and(session: str, job: AsyncJob[Any]) -> str:
    return await log_with(job, session)


class Logging:
    """A handler with a state of its own."""

    async def __call__(self, job: AsyncJob[Any]) -> str:
        return await log_with(job, "session")

    async def method(self, job: AsyncJob[Any]) -> str:
        return await log_with(job, "session")


@pytest.mark.parametrize(
    "handler",
    [
        with_session(log_with),
        passed_on(log_with),
        functools.partial(first_and, "session"),
        functools.partial(Logging()),
        Logging(),
        Logging().method,
    ],
)
async def test_a_handler_that_is_wrapped_bound_or_an_object_gets_the_job_that_it_can_await(
    queue: Queue, valkey_url: str, prefix: str, handler: Any
) -> None:
    async with Worker(QUEUE, handler, redis=valkey_url, prefix=prefix):
        job = await queue.add("n", {}, attempts=1)
        assert await job.wait_until_finished(timeout=10) == "session"
    assert (await queue.get_job_logs(job.id)).lines == ["a line"]


async def test_a_plain_function_that_returns_a_coroutine_fails_its_job_with_the_remedy(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async with Worker(QUEUE, lambda job: log_with(job, "s"), redis=valkey_url, prefix=prefix):
        job = await queue.add("n", {})
        with pytest.raises(JobFailed, match="write `async def`"):
            await job.wait_until_finished(timeout=10)


# --- the size of results ----------------------------------------------------------------------------------------


class Weighed:
    """Its JSON has as many bytes as asked for, and it remembers where that was made."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.made_in: list[tuple[int, str]] = []

    def model_dump_json(self, **_: Any) -> str:
        self.made_in.append((os.getpid(), threading.current_thread().name))
        return f'"{"x" * (self.size - 2)}"'


async def weigh_in_loop(job: Any) -> str:
    return "x" * (int(job.data["bytes"]) - 2)


def weigh(job: Any) -> str:
    return "x" * (int(job.data["bytes"]) - 2)


EXECUTORS = [("async", weigh_in_loop), ("thread", weigh), ("process", handlers.weigh)]


@pytest.mark.parametrize(("executor", "handler"), EXECUTORS)
async def test_a_result_may_have_ten_megabytes_and_one_byte_more_fails_for_good(
    queue: Queue, valkey_url: str, prefix: str, executor: Any, handler: Any
) -> None:
    limit = 10 * 1024 * 1024
    async with Worker(QUEUE, handler, redis=valkey_url, prefix=prefix, executor=executor):
        fits = await queue.add("n", {"bytes": limit}, attempts=3)
        assert len(await fits.wait_until_finished(timeout=30)) == limit - 2
        too_large = await queue.add("n", {"bytes": limit + 1}, attempts=3)
        with pytest.raises(JobFailed, match=f"{limit + 1} bytes.*max_result_size allows {limit}"):
            await too_large.wait_until_finished(timeout=30)
    found = await queue.get_job(too_large.id)
    assert found is not None and found.attempts_made == 1


@pytest.mark.parametrize(("executor", "handler"), EXECUTORS)
async def test_the_limit_of_results_can_be_set_and_lifted(
    queue: Queue, valkey_url: str, prefix: str, executor: Any, handler: Any
) -> None:
    place: dict[str, Any] = {"redis": valkey_url, "prefix": prefix, "executor": executor}
    async with Worker(QUEUE, handler, **place, max_result_size=100):
        job = await queue.add("n", {"bytes": 101})
        with pytest.raises(JobFailed, match="max_result_size allows 100"):
            await job.wait_until_finished(timeout=30)
    async with Worker(QUEUE, handler, **place, max_result_size=None):
        job = await queue.add("n", {"bytes": 11_000_000})
        assert len(await job.wait_until_finished(timeout=30)) == 11_000_000 - 2


async def test_a_result_is_weighed_where_its_handler_ran(queue: Queue, valkey_url: str, prefix: str) -> None:
    weighed = Weighed(20)
    errors: list[BaseException] = []
    worker = Worker(QUEUE, lambda _: weighed, redis=valkey_url, prefix=prefix, max_result_size=10)
    worker.on("failed", lambda _, error: errors.append(error))
    async with worker:
        job = await queue.add("n", {})
        with pytest.raises(JobFailed):
            await job.wait_until_finished(timeout=10)
        await worker.run_until_idle()
    assert [name.startswith("toril-job") for _, name in weighed.made_in] == [True]
    assert isinstance(errors[0], ResultTooLarge)


async def test_a_process_never_sends_a_result_that_is_too_large(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    """Reading it would end the worker's own process; in the handler's it is only weighed."""
    place: dict[str, Any] = {"redis": valkey_url, "prefix": prefix, "executor": "process"}
    async with Worker(QUEUE, handlers.never_sent, **place, max_result_size=10):
        job = await queue.add("n", {"bytes": 20})
        with pytest.raises(JobFailed, match="max_result_size allows 10"):
            await job.wait_until_finished(timeout=30)


@pytest.mark.parametrize("kind", [ListKind, StreamKind])
async def test_results_of_lists_and_streams_are_weighed_if_they_are_kept(
    valkey_url: str, prefix: str, kind: Any
) -> None:
    async with kind(valkey_url, prefix).opened() as opened:
        for kept, letters in ((None, 0), (60, 1)):
            await opened.add(payload={"bytes": 20})
            async with opened.worker(weigh_in_loop, max_result_size=10, keep_results=kept) as worker:
                await worker.run_until_idle()
            assert len(await opened.failed_jobs()) == letters
        (failed_job,) = await opened.failed_jobs()
        assert "max_result_size allows 10" in failed_job.reason


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10 MB", True])
def test_a_limit_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="max_result_size"):
        Worker(QUEUE, weigh, redis="redis://127.0.0.1:1", max_result_size=wrong)
