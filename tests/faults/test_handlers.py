"""Handlers that raise anything, hang, will not be cancelled, or are none at all."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import Any

import pytest

from tests.faults.conftest import QUEUE, Make, nothing, reached
from tests.servers import Server
from toril import InvalidOption, Job, Queue, Worker
from toril.protocol.state import JobState
from toril.sync import Job as BlockingJob
from toril.worker import WorkerState


class Rude(BaseException):
    """Not an Exception, as those of some frameworks are not."""


async def test_whatever_a_handler_raises_its_job_ends(make: Make, under_attack: Queue) -> None:
    raised: dict[str, BaseException] = {
        "rude": Rude("x"),
        "exit": SystemExit(3),
        "cancelled": asyncio.CancelledError(),
        "stop": StopAsyncIteration(),
        "group": ExceptionGroup("many", [ValueError("a"), ValueError("b")]),
        "rude group": BaseExceptionGroup("many", [Rude("a")]),
    }

    async def handle(job: Job[Any]) -> None:
        raise raised[job.name]

    def plain(job: BlockingJob[Any]) -> None:
        raise raised[job.name]

    for handler in (handle, plain):
        jobs = [await under_attack.add(name, {}, attempts=1) for name in raised]
        async with make(handler, concurrency=2) as worker:
            await asyncio.wait_for(worker.run_until_idle(), 10)
        assert [await job.get_state() for job in jobs] == [JobState.FAILED] * len(jobs)


A_PROGRAM_THAT_FAILS = """
import asyncio, sys, threading, time
from toril import Worker

async def program(url, queue, prefix, jobs):
    async def handle(job):
        nonlocal begun
        begun += 1
        await asyncio.sleep(600)

    begun = 0
    limits = {"concurrency": 5, "lock_duration": 1, "stalled_check_interval": 1}
    await Worker(queue, handle, redis=url, prefix=prefix, **limits).start()
    while begun < min(int(jobs), 5):
        await asyncio.sleep(0.01)
    raise LookupError("the program's own mistake")

try:
    asyncio.run(program(*sys.argv[1:]))
except LookupError:
    print("ended", flush=True)
while any("lock-renewer" in thread.name for thread in threading.enumerate()):
    time.sleep(0.01)
print("let go", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("jobs", [0, 1, 20])
async def test_a_program_that_fails_beside_its_worker_ends_and_lets_go_of_its_jobs(
    make: Make, under_attack: Queue, valkey: Server, prefix: str, jobs: int
) -> None:
    """`asyncio.run` cancels all tasks and waits for them: none of ours may refuse, and no lock may be kept for ever."""
    await under_attack.add_bulk([("n", {}, {"backoff": 0.01}) for _ in range(jobs)])
    words = [sys.executable, "-c", A_PROGRAM_THAT_FAILS, valkey.url, QUEUE, prefix, str(jobs)]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ended\n"
            assert await process.stdout.readline() == b"let go\n"
            async with make(nothing, concurrency=5, lock_duration=1, stalled_check_interval=1) as other:
                await other.run_until_idle()
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert (await under_attack.get_job_counts()).completed == jobs


async def test_the_least_patient_of_those_who_stop_a_worker_decides(make: Make, under_attack: Queue) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        begun.set()
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    worker = make(handle)
    await worker.start()
    job = await under_attack.add("n", {})
    await begun.wait()
    patient = asyncio.create_task(worker.stop(timeout=600))
    await reached(lambda: worker.state is WorkerState.SHUTTING_DOWN)
    async with asyncio.timeout(30):
        await asyncio.gather(worker.stop(timeout=300), worker.stop(timeout=0.1), patient)
    assert await job.get_state() == JobState.WAITING
    end.set()
    await reached(lambda: not [one for one in asyncio.all_tasks() if "toril-pool" in one.get_name()])


async def test_a_handler_that_will_not_be_cancelled_is_left_behind_and_its_job_goes_back(
    make: Make, under_attack: Queue
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn(_: Job[Any]) -> str:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        return "too late"

    job = await under_attack.add("n", {})
    worker = make(stubborn)
    await worker.start()
    await asyncio.wait_for(begun.wait(), 10)
    await asyncio.wait_for(worker.stop(timeout=0.1), 15)
    found = await under_attack.get_job(job.id)
    assert found is not None
    assert (await found.get_state(), found.attempts_made, found.stalled_count) == (JobState.WAITING, 0, 0)
    release.set()
    await reached(lambda: not [one for one in asyncio.all_tasks() if "toril-pool" in one.get_name()])


async def test_a_thread_that_hangs_does_not_keep_others_from_running(make: Make, under_attack: Queue) -> None:
    release = threading.Event()

    def handle(job: BlockingJob[Any]) -> str:
        if job.name == "hang":
            release.wait(30)
        return "done"

    hung = await under_attack.add("hang", {}, attempts=1)
    next_one = await under_attack.add("n", {}, attempts=1)
    async with make(handle, job_timeout=0.3) as worker:
        try:
            assert await next_one.wait_until_finished(timeout=10) == "done"
            assert await hung.get_state() == JobState.FAILED
            assert worker.health().jobs == 0
        finally:
            release.set()


@pytest.mark.parametrize(
    "handler",
    [None, 5, "handle", lambda: None, lambda a, b: None, {}, {"n": None}, {"n": lambda: None}, {5: nothing}],
)
def test_a_handler_that_cannot_be_called_is_refused_at_once(handler: Any) -> None:
    with pytest.raises(InvalidOption, match="handler"):
        Worker(QUEUE, handler, redis="redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0), ("concurrency", 1.5), ("concurrency", "2"), ("concurrency", True),
        ("lock_duration", 0), ("lock_duration", -1), ("lock_duration", "30"), ("lock_duration", float("inf")),
        ("stalled_check_interval", 0), ("max_stalled_count", -1), ("max_attempts", 0), ("job_timeout", 0),
        ("executor", "fibre"), ("unknown_errors", "maybe"), ("backoff_jitter", 2), ("worker_id", ""),
        ("drain_delay", 0), ("shutdown_timeout", -1), ("events_max_len", 0), ("error_rules", 5),
        ("backoffs", {"x": 5}), ("backoffs", 5), ("rate_limit", 5), ("metrics", 5), ("tracer", 5),
        ("logger", "log"), ("payload", 5), ("no_such_option", 1),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises((InvalidOption, TypeError), match=field):
        Worker(QUEUE, nothing, redis="redis://127.0.0.1:1", **{field: value})
