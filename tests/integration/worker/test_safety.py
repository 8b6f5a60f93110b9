"""Nothing lost, nothing done twice: locks, stalls, kills, races, outages."""

from __future__ import annotations

import asyncio
import collections
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE, until_state
from tests.servers import Server
from tests.waiting import until
from toril import Backoff, Job, Queue, TransientError, Worker
from toril.commands import locks
from toril.commands import worker as worker_commands
from toril.commands.command import plain
from toril.errors import LockLost, RedisUnavailable
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.worker import WorkerState

SCRIPT = Path(__file__).parent / "worker_process.py"
A_LITTLE = 1.8  # seconds beyond a time-out: cancelling what runs, closing connections, a busy machine


async def test_ten_workers_share_a_hundred_jobs_without_doing_one_twice(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    done: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        done[job.id] += 1
        await asyncio.sleep(0)

    jobs = await queue.add_bulk([("n", {"i": i}) for i in range(100)])
    workers = [Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=3) for _ in range(10)]
    await asyncio.gather(*(worker.start() for worker in workers))
    await asyncio.gather(*(worker.run_until_idle() for worker in workers))
    await asyncio.gather(*(worker.stop() for worker in workers))
    assert done == collections.Counter(job.id for job in jobs)


async def test_a_handler_that_blocks_the_loop_keeps_its_lock(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    def blocked(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    async def handle(_: Job[Any]) -> str:
        blocked(3.0)
        return "kept"

    job = await queue.add("n", {})
    async with (
        Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=1.0, stalled_check_interval=1.0),
    ):
        assert await job.wait_until_finished(timeout=20) == "kept"
    found = await queue.get_job(job.id)
    assert found is not None and found.stalled_count == 0 and found.attempts_started == 1


async def test_a_job_whose_worker_died_runs_again(queue: Queue, valkey_url: str, prefix: str) -> None:
    job = await queue.add("slow", {"seconds": 600})
    victim = subprocess.Popen([sys.executable, str(SCRIPT), valkey_url, prefix, QUEUE, "1"])
    await until_state(queue, job.id, "active")
    victim.send_signal(signal.SIGKILL)
    victim.wait()

    async def handle(_: Job[Any]) -> str:
        return "rescued"

    async with Worker(
        QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=1.0, stalled_check_interval=1.0
    ):
        assert await job.wait_until_finished(timeout=20) == "rescued"
    found = await queue.get_job(job.id)
    assert found is not None and found.stalled_count == 1


async def test_a_job_that_kills_its_workers_ends_in_failed(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    job = await queue.add("slow", {"seconds": 600})
    for _ in range(2):
        victim = subprocess.Popen([sys.executable, str(SCRIPT), valkey_url, prefix, QUEUE, "1"])
        await until_state(queue, job.id, "active")
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        await _sweep_until_waiting(transport, queue, job.id)
    async with Worker(QUEUE, lambda job: "?", redis=valkey_url, prefix=prefix):
        await until_state(queue, job.id, "failed")
    found = await queue.get_job(job.id)
    assert found is not None and found.failed_reason == "job stalled more than allowable limit"


async def _sweep_until_waiting(transport: AsyncTransport, queue: Queue, job_id: str) -> None:
    async def swept() -> bool:
        now = await transport.now_ms()
        await transport.run(locks.official_sweep(queue.keys, max_stalled=1, now_ms=now, interval_ms=1))
        return (await queue.get_job_counts()).active == 0

    await until(swept, "the lock ran out and the job went back")


async def test_a_completion_and_a_sweep_cannot_both_have_the_job(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    lost: list[str] = []

    async def handle(job: Job[Any]) -> str:
        # The lock vanishes and a sweep takes the job away while the handler runs.
        if job.attempts_started == 1:
            await transport.run(plain(int, "DEL", queue.keys.lock(job.id)))
            for _ in range(2):
                await transport.run(plain(int, "DEL", queue.keys.stalled_check))
                now = await transport.now_ms()
                await transport.run(
                    locks.official_sweep(queue.keys, max_stalled=5, now_ms=now, interval_ms=1000)
                )
            lost.append(job.id)
            return "first"
        return "second"

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        assert await job.wait_until_finished(timeout=10) == "second"
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert lost == [job.id]
    assert found is not None and (found.attempts_made, found.attempts_started) == (1, 2)


async def test_a_lost_lock_is_visible_to_the_handler_and_its_late_finish_is_refused(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    told = asyncio.Event()

    async def handle(job: Job[Any]) -> str:
        await transport.run(plain(str, "SET", queue.keys.lock(job.id), "another's", "PX", 60_000))
        await until(lambda: job.lock_lost, "the job has lost its lock")
        told.set()
        return "late"

    job = await queue.add("n", {})
    async with Worker(
        QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=0.5, stalled_check_interval=60
    ) as worker:
        await asyncio.wait_for(told.wait(), 10)
        await worker.pause()
    assert await job.get_state() == "active"


@pytest.mark.parametrize("server", ["valkey", "redis7", "cluster", "sentinel"])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_result_is_accepted_though_its_lock_ran_out_as_long_as_nobody_had_the_job(
    request: pytest.FixtureRequest, prefix: str, server: str, concurrency: int
) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    trouble: list[Any] = []
    async with Queue(QUEUE, redis=url, prefix=prefix) as queue, AsyncTransport(url) as transport:

        async def handle(job: Job[Any]) -> str:
            await transport.run(plain(int, "DEL", queue.keys.lock(job.id)))
            if job.data["end"] == "postpone" and job.attempts_started == 1:
                job.postpone(0.01)
            if job.data["end"] == "retry" and job.attempts_started == 1:
                raise TransientError("once")
            return "kept"

        ends = ("return", "return", "postpone", "retry")
        jobs = [await queue.add("n", {"end": end}, backoff=Backoff.fixed(0.01)) for end in ends]
        worker = Worker(QUEUE, handle, redis=url, prefix=prefix, concurrency=concurrency)
        worker.on("lock_lost", trouble.append)
        worker.on("error", trouble.append)
        async with worker:
            results = [await job.wait_until_finished(timeout=20) for job in jobs]
        found = [await queue.get_job(job.id) for job in jobs]
    assert results == ["kept"] * 4
    assert [(job.attempts_started, job.stalled_count) for job in found if job] == [
        (1, 0),
        (1, 0),
        (2, 0),
        (2, 0),
    ]
    assert trouble == []
    assert worker.processed == 4


async def test_a_heartbeat_retakes_a_lock_that_ran_out(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        await transport.run(plain(int, "DEL", queue.keys.lock(job.id)))

        async def locked() -> bool:
            return await transport.run(plain(bool, "EXISTS", queue.keys.lock(job.id)))

        await until(locked, "the lock is there again")
        return "lost" if job.lock_lost else "kept"

    job = await queue.add("n", {})
    async with Worker(
        QUEUE, handle, redis=valkey_url, prefix=prefix, lock_duration=0.5, stalled_check_interval=60
    ):
        assert await job.wait_until_finished(timeout=20) == "kept"
    found = await queue.get_job(job.id)
    assert found is not None and (found.attempts_started, found.stalled_count) == (1, 0)


async def test_a_restart_of_the_server_is_survived_and_the_finish_delivered(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(job: Job[Any]) -> str:
        started.set()
        await release.wait()
        return job.name

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        first = await queue.add("first", {})
        async with Worker(QUEUE, handle, redis=server.url, prefix=prefix, max_reconnect_delay=0.2) as worker:
            await asyncio.wait_for(started.wait(), 10)
            await asyncio.to_thread(server.kill)
            server.start()
            release.set()
            await until_state(queue, first.id, "completed")
            second = await queue.add("second", {})
            assert await second.wait_until_finished(timeout=20) == "second"
            assert worker.state is WorkerState.RUNNING


async def test_an_idle_worker_says_that_it_is_disconnected_and_comes_back(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    states: list[str] = []
    back = asyncio.Event()
    async with Worker(
        QUEUE, lambda job: None, redis=server.url, prefix=prefix, drain_delay=0.1, max_reconnect_delay=0.2
    ) as worker:
        worker.on("disconnected", lambda _: states.append(worker.state.value))
        worker.on("reconnected", lambda _: back.set())
        await asyncio.to_thread(server.kill)

        async def disconnected() -> bool:
            return bool(states)

        await until(disconnected, "the worker noticed")
        server.start()
        await asyncio.wait_for(back.wait(), 20)
        assert worker.state is WorkerState.RUNNING
    assert states == ["disconnected"]


async def test_a_worker_gives_up_after_its_limit_and_says_why(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    worker = Worker(
        QUEUE,
        lambda job: None,
        redis=server.url,
        prefix=prefix,
        drain_delay=0.1,
        max_reconnect_attempts=2,
    )
    running = asyncio.create_task(worker.run())

    async def up() -> bool:
        return worker.state is WorkerState.RUNNING

    await until(up, "it runs")
    await asyncio.to_thread(server.kill)
    with pytest.raises(RedisUnavailable):
        await asyncio.wait_for(running, 20)
    assert worker.state is WorkerState.STOPPED


async def gives_up(
    server: Server, prefix: str, go_away: Callable[[], None], shutdown_timeout: float
) -> float:
    """The seconds from the moment at which a worker gives up, with a job in hand, until it has stopped."""
    begun = asyncio.Event()

    async def handle(job: Job) -> None:
        begun.set()
        await asyncio.sleep(0.5 if job.name == "short" else 60)

    worker = Worker(
        QUEUE,
        handle,
        redis=server.url,
        prefix=prefix,
        concurrency=3,
        lock_duration=1,
        stalled_check_interval=0.2,
        drain_delay=0.1,
        shutdown_timeout=shutdown_timeout,
        policy=ConnectionPolicy(command_timeout=0.5, max_reconnect_attempts=2),
    )
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), 20)
    await asyncio.to_thread(go_away)

    async def ending() -> bool:
        return worker.state in (WorkerState.SHUTTING_DOWN, WorkerState.STOPPED)

    await until(ending, "it gave up")
    started = time.monotonic()
    with pytest.raises(RedisUnavailable):
        await asyncio.wait_for(running, 40)
    assert worker.state is WorkerState.STOPPED
    return time.monotonic() - started


@pytest.mark.parametrize("how", ["kill", "freeze"])
@pytest.mark.parametrize("job", ["short", "long"])
async def test_a_worker_that_gives_up_ends_within_its_time_and_says_so_once(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture, how: str, job: str
) -> None:
    server = start_valkey()
    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        await queue.add(job)
    assert await gives_up(server, prefix, getattr(server, how), shutdown_timeout=2) < 2 + A_LITTLE
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert [text.split(" error=")[0].split(" attempts=")[0] for text in errors] == [
        "Redis disconnected",
        "Redis cannot be reached: the worker shuts down",
    ]
    assert "Closed" not in caplog.text


async def test_a_job_whose_worker_gave_up_runs_again_when_its_lock_has_lapsed(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        job = await queue.add("long")
        await gives_up(server, prefix, server.kill, shutdown_timeout=0)
        server.start()
        async with Worker(
            QUEUE, lambda job: "again", redis=server.url, prefix=prefix, stalled_check_interval=0.2
        ):
            assert await job.wait_until_finished(timeout=20) == "again"


async def test_a_worker_without_a_server_ends_at_once_when_stopped(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    async with Worker(QUEUE, lambda job: None, redis=server.url, prefix=prefix) as worker:
        lost = asyncio.Event()
        worker.on("disconnected", lambda _: lost.set())
        await asyncio.to_thread(server.stop)
        await asyncio.wait_for(lost.wait(), 20)
        started = time.monotonic()
        await worker.stop()
        assert time.monotonic() - started < 5


async def test_a_token_of_another_cannot_finish_a_job(queue: Queue, transport: AsyncTransport) -> None:
    job = await queue.add("n", {})
    now = await transport.now_ms()
    mine = worker_commands.Pickup(token="mine", lock_ms=30_000)
    theirs = worker_commands.Pickup(token="theirs", lock_ms=30_000)
    await transport.run(worker_commands.settle(queue.keys, [], capacity=1, pickup=mine, now_ms=now))
    options = worker_commands.finish_options(pickup=theirs, token="theirs", keep={"count": -1}, attempts=1)
    forged = worker_commands.Settlement(
        job_id=job.id, kind="completed", token="theirs", value=b"1", options=options
    )
    reply = await transport.run(
        worker_commands.settle(queue.keys, [forged], capacity=0, pickup=theirs, now_ms=now)
    )
    assert isinstance(reply.ack_errors[0], LockLost)
    assert await job.get_state() == "active"
