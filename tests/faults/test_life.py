"""Workers that are started, stopped, paused and cancelled at the worst moments, by handlers and callbacks too."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.faults.proxy import Proxy
from tests.servers import Server, free_port
from toril import InvalidOption, Job, Queue, Worker, sync
from toril.contract.errors import Closed, StoreUnavailable
from toril.contract.state import JobState
from toril.sync import Job as BlockingJob
from toril.worker import WorkerState

Make = Callable[..., Worker]


@pytest.fixture
def make(valkey: Server, prefix: str) -> Make:
    return lambda handler, **options: Worker(QUEUE, handler, redis=valkey.url, prefix=prefix, **options)


async def nothing(_: Job[Any]) -> None: ...


async def reached(condition: Callable[[], bool], within: float = 15.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


# --- start and stop -------------------------------------------------------------------------------------------------


async def test_a_worker_started_twice_at_once_is_one_worker(make: Make) -> None:
    def keepers() -> int:
        return sum("lock-keeper" in thread.name for thread in threading.enumerate())

    worker = make(nothing)
    await asyncio.gather(worker.start(), worker.start(), worker.start())
    assert keepers() == 1
    await worker.stop()
    assert keepers() == 0


async def test_a_stop_while_it_starts_ends_the_start(prefix: str) -> None:
    worker = Worker(QUEUE, nothing, redis=f"redis://127.0.0.1:{free_port()}", prefix=prefix)
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await asyncio.wait_for(worker.stop(), 5)
    with pytest.raises(Closed, match="stopped while it started"):
        await starting
    assert worker.state is WorkerState.STOPPED


async def test_a_run_that_is_stopped_before_redis_answers_returns(prefix: str) -> None:
    worker = Worker(QUEUE, nothing, redis=f"redis://127.0.0.1:{free_port()}", prefix=prefix)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.2)
    await worker.stop()
    await asyncio.wait_for(running, 5)


async def test_a_start_while_it_stops_starts_it_again(make: Make, under_attack: Queue) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        begun.set()
        await release.wait()

    worker = make(handle)
    await worker.start()
    await under_attack.add("n", {})
    await asyncio.wait_for(begun.wait(), 10)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0.05)
    release.set()
    await asyncio.wait_for(asyncio.gather(stopping, starting), 10)
    assert worker.state is WorkerState.RUNNING
    await worker.stop()


async def test_a_cancelled_run_stops_its_worker(make: Make) -> None:
    worker = make(nothing)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.run(), 0.3)
    assert worker.state is WorkerState.STOPPED


async def test_a_body_that_raises_still_lets_jobs_finish(make: Make, under_attack: Queue) -> None:
    begun = asyncio.Event()

    async def handle(_: Job[Any]) -> str:
        begun.set()
        await asyncio.sleep(0.2)
        return "finished"

    job = await under_attack.add("n", {})
    with contextlib.suppress(ZeroDivisionError):
        async with make(handle):
            await asyncio.wait_for(begun.wait(), 10)
            raise ZeroDivisionError
    assert await job.get_state() == JobState.COMPLETED


@pytest.mark.parametrize("wrong", ["soon", -1, float("nan"), True, timedelta(seconds=-1)])
async def test_a_stop_with_a_wrong_time_out_is_refused_and_the_worker_goes_on(make: Make, wrong: Any) -> None:
    async with make(nothing) as worker:
        with pytest.raises(InvalidOption, match="timeout"):
            await worker.stop(timeout=wrong)
        assert worker.state is WorkerState.RUNNING
        await worker.stop(timeout=timedelta(seconds=5))  # type: ignore[arg-type]
        assert worker.state is WorkerState.STOPPED


async def test_a_worker_that_never_ran_can_be_asked_everything(make: Make) -> None:
    worker = make(nothing)
    assert not worker.cancel("nobody")
    assert worker.health().alive is False
    await worker.stop()
    await worker.pause()
    worker.resume()
    with pytest.raises(Closed, match="stopped"):
        worker.concurrency = 3
    assert worker.concurrency == 1


async def test_two_workers_in_one_loop_both_hear_a_signal(make: Make) -> None:
    before = signal.getsignal(signal.SIGTERM)
    workers = [make(nothing) for _ in range(3)]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    await reached(lambda: all(worker.state is WorkerState.RUNNING for worker in workers))
    await workers[1].stop()  # the last to install handlers is not the last to need them
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*running), 10)
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_worker_runs_in_a_thread_that_hears_no_signals(make: Make) -> None:
    done: list[WorkerState] = []
    worker = make(nothing)

    def live() -> None:
        async def briefly() -> None:
            running = asyncio.create_task(worker.run())
            await reached(lambda: worker.state is WorkerState.RUNNING)
            await worker.stop()
            await running
            done.append(worker.state)

        asyncio.run(briefly())

    thread = threading.Thread(target=live)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert done == [WorkerState.STOPPED]


# --- callbacks and collectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["completed", "drained", "ready", "failed"])
async def test_a_callback_may_stop_its_worker(make: Make, under_attack: Queue, event: Any) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no")

    worker = make(handle)

    async def enough(*_: Any) -> None:
        await worker.stop()

    worker.on(event, enough)
    worker.on(event, enough)
    await under_attack.add("bad", {}, attempts=1)
    await under_attack.add("good", {})
    await asyncio.wait_for(worker.run(), 10)
    assert worker.state is WorkerState.STOPPED


@pytest.mark.parametrize("how", ["run", "with"])
def test_a_blocking_callback_may_stop_its_blocking_worker(valkey: Server, prefix: str, how: str) -> None:
    ended = threading.Event()

    def handle(_: BlockingJob[Any]) -> None: ...

    worker = sync.Worker(QUEUE, handle, redis=valkey.url, prefix=prefix)

    def enough(*_: Any) -> None:
        worker.stop()
        ended.set()

    worker.on("completed", enough)
    with sync.Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        queue.add("n", {})
        if how == "run":
            worker.run()
            assert ended.wait(10)
        else:
            with worker:
                assert ended.wait(10)
    assert worker.state is WorkerState.STOPPED


async def test_a_handler_may_stop_its_worker(make: Make, under_attack: Queue) -> None:
    stops: list[asyncio.Task[None]] = []

    async def handle(_: Job[Any]) -> None:
        stops.append(asyncio.create_task(worker.stop()))

    worker = make(handle)
    job = await under_attack.add("n", {})
    await asyncio.wait_for(worker.run(), 10)
    await asyncio.gather(*stops)
    assert await job.get_state() == JobState.COMPLETED


async def test_callbacks_that_raise_disturb_nobody(make: Make, under_attack: Queue) -> None:
    worker = make(nothing, concurrency=4)

    def broken(*_: Any) -> None:
        raise RuntimeError("a callback")

    async def broken_later(*_: Any) -> None:
        raise RuntimeError("a callback")

    for event in ("ready", "active", "completed", "drained", "closed", "paused", "resumed", "error"):
        worker.on(event, broken)  # type: ignore[arg-type]
        worker.on(event, broken_later)  # type: ignore[arg-type]
    await under_attack.add_bulk([("n", {"i": i}) for i in range(20)])
    async with worker:
        await asyncio.wait_for(worker.run_until_idle(), 10)
        await worker.pause()
        worker.resume()
    assert (await under_attack.get_job_counts()).completed == 20


class BrokenMetrics:
    """Raises whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def broken(*_: Any, **__: Any) -> None:
            if name not in ("set_active_workers", "set_redis_connection_status"):
                raise RuntimeError(name)

        return broken


async def test_a_collector_that_raises_costs_no_job_and_no_lock(make: Make, under_attack: Queue) -> None:
    async def handle(job: Job[Any]) -> None:
        await asyncio.sleep(job.data["seconds"])

    await under_attack.add_bulk([("n", {"seconds": 0 if i else 2.5}) for i in range(20)])
    async with make(
        handle, concurrency=4, metrics=BrokenMetrics(), lock_duration=1, stalled_check_interval=0.5
    ) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 15)
        assert worker.health().alive
    counts = await under_attack.get_job_counts()
    assert counts.completed == 20
    assert max(job.stalled_count for job in await under_attack.get_completed()) == 0


# --- handlers -------------------------------------------------------------------------------------------------------


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
while any("lock-keeper" in thread.name for thread in threading.enumerate()):
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
    await reached(lambda: not [one for one in asyncio.all_tasks() if "lane" in one.get_name()])


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
    await reached(lambda: not [one for one in asyncio.all_tasks() if "lane" in one.get_name()])


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


# --- races ----------------------------------------------------------------------------------------------------------


async def test_a_pause_that_is_taken_back_returns(make: Make, under_attack: Queue) -> None:
    release = asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        await release.wait()

    await under_attack.add_bulk([("n", {"i": i}) for i in range(4)])
    async with make(handle, concurrency=2) as worker:
        await reached(lambda: worker.health().jobs == 2)
        pausing = asyncio.create_task(worker.pause())
        await asyncio.sleep(0.05)
        worker.resume()
        await asyncio.wait_for(pausing, 5)
        release.set()
        await asyncio.wait_for(worker.run_until_idle(), 10)


async def test_a_pause_passes_its_wake_up_call_on(make: Make, under_attack: Queue) -> None:
    """A job that comes while one of two idle workers pauses is taken by the other, and not after its next look."""
    done: list[str] = []

    async def handle(job: Job[Any]) -> None:
        done.append(job.id)

    async with make(handle, drain_delay=60) as first, make(handle, drain_delay=60) as second:
        for turn in range(15):
            one, other = (first, second) if turn % 2 else (second, first)
            adding = asyncio.create_task(under_attack.add("n", {"turn": turn}))
            await asyncio.sleep(random.random() * 0.003)
            await one.pause()
            job = await adding
            await reached(lambda job=job: job.id in done, 5)
            one.resume()
            await reached(lambda other=other: other.health().taking)


async def test_a_minute_of_meddling_in_seconds_loses_nothing(
    make: Make, under_attack: Queue, bad_network: Proxy, prefix: str
) -> None:
    """Pauses, resumes, new limits and stops at random moments, on a network that drops calls."""
    dice = random.Random(7)
    runs: collections.Counter[str] = collections.Counter()
    running = most = 0

    async def handle(job: Job[Any]) -> None:
        nonlocal running, most
        runs[job.id] += 1
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(dice.random() * 0.01 if dice.random() < 0.5 else 0)
        finally:
            running -= 1

    jobs = await under_attack.add_bulk([("n", {"i": i}) for i in range(600)])
    worker = Worker(
        QUEUE, handle, redis=bad_network.url, prefix=prefix, concurrency=8, reconnect_delay=0.01, lock_duration=5,
        stalled_check_interval=1, max_stalled_count=10,
    )  # fmt: skip
    await worker.start()
    cuts = 0
    deadline = time.monotonic() + 40
    while (await under_attack.get_job_counts()).completed < len(jobs):
        assert time.monotonic() < deadline, await under_attack.get_job_counts()
        match dice.randrange(7):
            case 0:
                await worker.pause(wait=dice.random() < 0.5)
                worker.resume()
            case 1:
                worker.concurrency = dice.randrange(1, 12)
            case 2:
                await worker.stop()
                await worker.start()
            case 3:
                pausing = asyncio.create_task(worker.pause())
                await asyncio.sleep(dice.random() * 0.01)
                worker.resume()
                await pausing
            case 4:
                cuts += 1
                bad_network.arm(dice.choice(["cut before", "cut after"]), f"{prefix}:{QUEUE}:wait".encode())
            case _:
                await asyncio.sleep(dice.random() * 0.02)
    await worker.stop()
    assert set(runs) == {job.id for job in jobs}
    assert most <= 12
    assert runs.total() - len(jobs) <= cuts * 12
    print(f"{cuts} cuts, {runs.total() - len(jobs)} jobs twice")


async def test_run_until_idle_waits_for_delayed_retries_and_outages(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")

    async def handle(job: Job[Any]) -> int:
        if job.attempts_made < 1:
            raise ConnectionError("again")
        return job.attempts_made

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        job = await queue.add("n", {}, attempts=3, backoff=4.0)
        later = await queue.add("n", {}, delay=3600)
        worker = Worker(QUEUE, handle, redis=server.url, prefix=prefix, max_reconnect_delay=0.2)
        idle = asyncio.create_task(worker.run_until_idle())
        await reached(lambda: worker.state is WorkerState.RUNNING)
        while await job.get_state() != JobState.DELAYED:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(2.5)  # longer than a single call is patient
        server.start()
        await asyncio.wait_for(idle, 20)
        assert await job.get_state() == JobState.COMPLETED
        assert await later.get_state() == JobState.DELAYED
        await worker.stop()


async def test_a_closed_queue_refuses_everything(valkey: Server, prefix: str) -> None:
    queue = Queue(QUEUE, redis=valkey.url, prefix=prefix)
    job = await queue.add("n", {})
    await queue.close()
    await queue.close()
    for step in (
        lambda: queue.add("n", {}),
        lambda: queue.add_bulk([("n", {})]),
        lambda: queue.get_job(job.id),
        queue.pause,
        queue.get_job_counts,
        job.get_state,
        job.remove,
        lambda: job.wait_until_finished(timeout=1),
    ):
        with pytest.raises(Closed):
            await step()


async def test_nobody_waits_for_ever_for_a_server_that_is_not_there(prefix: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback((queue := Queue(QUEUE, redis="redis://127.0.0.1:1", prefix=prefix)).close)
        with pytest.raises(StoreUnavailable, match="reached"):
            await asyncio.wait_for(queue.add("n", {}), 20)
