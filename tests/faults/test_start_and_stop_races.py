"""Workers that are started and stopped at the worst moments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.faults.conftest import QUEUE, Make, nothing, reached
from tests.servers import free_port
from tests.waiting import until
from toril import InvalidOption, Job, Queue, Worker
from toril.errors import Closed
from toril.protocol.state import JobState
from toril.worker import WorkerState


async def test_a_worker_started_twice_at_once_is_one_worker(make: Make) -> None:
    def lock_renewers() -> int:
        return sum("lock-renewer" in thread.name for thread in threading.enumerate())

    worker = make(nothing)
    await asyncio.gather(worker.start(), worker.start(), worker.start())
    assert lock_renewers() == 1
    await worker.stop()
    assert lock_renewers() == 0


async def test_a_stop_while_it_starts_ends_the_start(prefix: str) -> None:
    worker = Worker(QUEUE, nothing, redis=f"redis://127.0.0.1:{free_port()}", prefix=prefix)
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await asyncio.wait_for(worker.stop(), 5)
    with pytest.raises(Closed, match="stopped while it started"):
        await starting
    assert worker.state is WorkerState.STOPPED


async def test_a_run_that_is_stopped_before_redis_answers_returns(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(QUEUE, nothing, redis=f"redis://127.0.0.1:{free_port()}", prefix=prefix)
    running = asyncio.create_task(worker.run())
    await until(lambda: "Redis reconnect failed" in caplog.text, "an attempt to connect failed")
    assert not running.done()
    await worker.stop()
    await asyncio.wait_for(running, 5)
    assert worker.state is WorkerState.STOPPED


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
    await until(lambda: worker.state is WorkerState.SHUTTING_DOWN, "the stop waits for the job")
    assert not starting.done()
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
        await until(lambda: worker.state is WorkerState.SHUTTING_DOWN, "the worker stops")
        return "finished"

    job = await under_attack.add("n", {})
    with contextlib.suppress(ZeroDivisionError):
        async with make(handle) as worker:
            await asyncio.wait_for(begun.wait(), 10)
            raise ZeroDivisionError
    assert await job.get_state() == JobState.COMPLETED


@pytest.mark.parametrize("wrong", ["soon", -1, float("nan"), True, timedelta(seconds=-1)])
async def test_a_stop_with_a_wrong_time_out_is_refused_and_the_worker_goes_on(make: Make, wrong: Any) -> None:
    async with make(nothing) as worker:
        with pytest.raises(InvalidOption, match="timeout"):
            await worker.stop(timeout=wrong)
        states = [worker.state]
        await worker.stop(timeout=timedelta(seconds=5))  # type: ignore[arg-type]
        states.append(worker.state)
        assert states == [WorkerState.RUNNING, WorkerState.STOPPED]


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
