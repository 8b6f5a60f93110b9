"""Start, stop, pause, and what is left afterwards."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.conftest import MAX_WAIT_SECONDS, QUEUE, until_state
from tests.servers import Server
from tests.waiting import until
from toril import Job, Queue, Worker
from toril.sync import Job as BlockingJob
from toril.transport import AsyncTransport
from toril.worker import WorkerState

SCRIPT = Path(__file__).parent / "worker_process.py"


async def nothing(_: Job[Any]) -> None: ...


async def test_a_worker_goes_through_its_states(valkey_url: str, prefix: str) -> None:
    worker = Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix)
    states = [worker.state]
    await worker.start()
    await worker.start()
    states.append(worker.state)
    await asyncio.gather(worker.stop(), worker.stop())
    states.append(worker.state)
    assert states == [WorkerState.STOPPED, WorkerState.RUNNING, WorkerState.STOPPED]


async def test_a_stopped_worker_can_be_started_again(queue: Queue, valkey_url: str, prefix: str) -> None:
    worker = Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix)
    for _ in range(2):
        job = await queue.add("n", {})
        async with worker:
            await job.wait_until_finished(timeout=10)
        assert await job.get_state() == "completed"


async def test_a_stop_lets_running_jobs_finish(queue: Queue, valkey_url: str, prefix: str) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any]) -> str:
        started.set()
        await release.wait()
        return "finished"

    job, later = await queue.add("n", {}), await queue.add("n", {})
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix)
    await worker.start()
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(worker.stop(timeout=10))
    await asyncio.sleep(0)
    release.set()
    await stopping
    assert await job.get_state() == "completed"
    assert await later.get_state() == "waiting"


async def test_after_the_time_out_jobs_go_back_with_their_attempt_not_counted(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    started = asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    job = await queue.add("n", {})
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix)
    await worker.start()
    await asyncio.wait_for(started.wait(), 10)
    await worker.stop(timeout=0.01)
    found = await queue.get_job(job.id)
    assert found is not None
    assert (await found.get_state(), found.attempts_made, found.stalled_count) == ("waiting", 0, 0)


@pytest.mark.parametrize(
    "options",
    [{}, {"lifo": True}, {"priority": 1}, {"priority": 1000}, {"priority": 2_000_000}],
    ids=["plain", "lifo", "priority 1", "priority 1000", "priority 2000000"],
)
async def test_jobs_that_a_stop_gives_back_run_in_the_order_in_which_they_would_have_run(
    queue: Queue, valkey_url: str, prefix: str, options: dict[str, Any]
) -> None:
    """Also with more jobs in hand than go back in one call."""
    started: list[str] = []
    enough = asyncio.Event()

    async def hold(job: Job[Any]) -> None:
        started.append(job.id)
        if len(started) == wanted:
            enough.set()
        await asyncio.Event().wait()

    jobs = [await queue.add("n", {}, attempts=1, **options) for _ in range(140)]
    order = [job.id for job in (reversed(jobs) if "lifo" in options else jobs)]
    for wanted in (1, 7, 120):
        started.clear()
        enough.clear()
        worker = Worker(QUEUE, hold, redis=valkey_url, prefix=prefix, concurrency=wanted)
        await worker.start()
        await asyncio.wait_for(enough.wait(), MAX_WAIT_SECONDS)
        await worker.stop(timeout=0)
        assert sorted(started) == sorted(order[:wanted])
    seen: list[str] = []

    async def note(job: Job[Any]) -> None:
        seen.append(job.id)

    async with Worker(QUEUE, note, redis=valkey_url, prefix=prefix) as last:
        await last.run_until_idle()
    assert seen == order


async def test_jobs_of_several_priorities_go_back_each_to_its_own_place(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    both = asyncio.Barrier(5)

    async def hold(_: Job[Any]) -> None:
        await both.wait()
        await asyncio.Event().wait()

    for n in range(3):
        await queue.add("n", {"n": f"low {n}"}, priority=9)
        await queue.add("n", {"n": f"high {n}"}, priority=2)
        await queue.add("n", {"n": f"none {n}"})
    worker = Worker(QUEUE, hold, redis=valkey_url, prefix=prefix, concurrency=4)
    await worker.start()
    await asyncio.wait_for(both.wait(), MAX_WAIT_SECONDS)
    await worker.stop(timeout=0)
    await queue.add("n", {"n": "high 3"}, priority=2)
    seen: list[str] = []

    async def note(job: Job[Any]) -> None:
        seen.append(job.data["n"])

    async with Worker(QUEUE, note, redis=valkey_url, prefix=prefix) as last:
        await last.run_until_idle()
    expected = [*(f"none {n}" for n in range(3)), *(f"high {n}" for n in range(4))]
    assert seen == [*expected, *(f"low {n}" for n in range(3))]


async def test_a_job_that_comes_while_its_worker_stops_goes_back_unrun(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    """Its pickup was under way: the server had not answered when the stop began."""
    server = start_valkey()
    ran: list[str] = []

    async def note(job: Job[Any]) -> None:
        ran.append(job.id)
        await asyncio.Event().wait()

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        worker = Worker(QUEUE, note, redis=server.url, prefix=prefix)
        await worker.start()
        await worker.pause()
        job = await queue.add("n", {})
        server.freeze()
        worker.resume()
        await asyncio.sleep(0)  # the turn in which it asks for jobs
        stopping = asyncio.create_task(worker.stop(timeout=0))
        while worker._lifecycle._runtime.runner._stop_message is None:
            await asyncio.sleep(0)
        server.thaw()
        await stopping
        assert ran == []
        found = await queue.get_job(job.id)
        assert found is not None
        assert (await found.get_state(), found.attempts_started, found.stalled_count) == ("waiting", 1, 0)


async def test_a_thread_that_goes_on_after_the_time_out_cannot_finish_its_job(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(_: BlockingJob[Any]) -> str:
        started.set()
        release.wait(MAX_WAIT_SECONDS)
        return "too late"

    job = await queue.add("n", {})
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix)
    await worker.start()
    await asyncio.to_thread(started.wait, 10)
    await worker.stop(timeout=0.01)
    release.set()
    assert await job.get_state() == "waiting"


async def test_a_paused_worker_takes_nothing_until_it_resumes(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async with Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix) as worker:
        await worker.pause()
        job = await queue.add("n", {})
        assert worker.is_paused and await job.get_state() == "waiting"
        worker.resume()
        await job.wait_until_finished(timeout=10)


async def test_concurrency_can_be_changed_while_it_runs(queue: Queue, valkey_url: str, prefix: str) -> None:
    running, most, release = 0, 0, asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    await queue.add_bulk([("n", {"i": i}) for i in range(6)])
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=2) as worker:

        async def two() -> bool:
            return running == 2

        async def five() -> bool:
            return running == 5

        await until(two, "two run")
        worker.concurrency = 5
        await until(five, "five run")
        release.set()
        await worker.run_until_idle()
    assert most == 5


async def test_a_paused_queue_gives_nothing(queue: Queue, valkey_url: str, prefix: str) -> None:
    await queue.pause()
    job = await queue.add("n", {})
    async with Worker(QUEUE, nothing, redis=valkey_url, prefix=prefix, drain_delay=0.05):
        assert (await queue.get_job_counts()).paused == 1
        await queue.resume()
        await job.wait_until_finished(timeout=10)


async def test_delayed_jobs_start_when_they_are_due(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    late: list[float] = []

    async def handle(job: Job[Any]) -> None:
        late.append(await transport.now_ms() - job.record.timestamp_ms - job.data["delay_ms"])

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=10):
        jobs = [await queue.add("n", {"delay_ms": ms}, delay=ms / 1000) for ms in (400, 100, 250)]
        for job in jobs:
            await job.wait_until_finished(timeout=10)
    # Both ends know the server's time to within half a round trip, which a busy machine makes long.
    assert min(late) > -50


async def test_sigterm_ends_a_worker_process_and_its_running_job_is_done(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    job = await queue.add("slow", {"seconds": 0.5})
    process = subprocess.Popen([sys.executable, str(SCRIPT), valkey_url, prefix, QUEUE])
    await until_state(queue, job.id, "active")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, MAX_WAIT_SECONDS) == 0
    assert await job.get_state() == "completed"


async def test_a_second_signal_sends_the_job_back_at_once(queue: Queue, valkey_url: str, prefix: str) -> None:
    job = await queue.add("slow", {"seconds": 600})
    process = subprocess.Popen([sys.executable, str(SCRIPT), valkey_url, prefix, QUEUE])
    await until_state(queue, job.id, "active")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, MAX_WAIT_SECONDS) == 0
    assert await job.get_state() == "waiting"
