"""Pauses, resumptions, stops and meddling that meet in one moment."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.faults.conftest import QUEUE, Make, reached
from tests.faults.proxy import Proxy
from tests.servers import Server
from tests.waiting import until_equal
from toril import Job, Queue, Worker
from toril.errors import Closed, RedisUnavailable
from toril.protocol.state import JobState
from toril.worker import WorkerState


async def test_a_pause_that_is_taken_back_returns(make: Make, under_attack: Queue) -> None:
    release = asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        await release.wait()

    await under_attack.add_bulk([("n", {"i": i}) for i in range(4)])
    async with make(handle, concurrency=2) as worker:
        await reached(lambda: worker.health().jobs == 2)
        pausing = asyncio.create_task(worker.pause())
        await reached(lambda: not worker.health().taking)
        assert not pausing.done()
        worker.resume()
        await asyncio.wait_for(pausing, 5)
        release.set()
        await asyncio.wait_for(worker.run_until_idle(), 10)
    assert (await under_attack.get_job_counts()).completed == 4


def contains(ids: list[str], job_id: str) -> bool:
    return job_id in ids


def is_fetching(worker: Worker) -> bool:
    return worker.health().taking


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
            await reached(partial(contains, done, job.id), 5)
            one.resume()
            await reached(partial(is_fetching, other))
    assert len(done) == len(set(done)) == 15


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
        await until_equal(job.get_state, JobState.DELAYED)
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
        with pytest.raises(RedisUnavailable, match="reached"):
            await asyncio.wait_for(queue.add("n", {}), 20)
