"""How a worker says it is, through its life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.servers import Server
from toril import Job, Queue, Worker
from toril.worker import WorkerHealth

QUEUE = "emails"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_worker_is_ready_from_start_to_stop_and_knows_what_it_has_in_hand(
    valkey_url: str, prefix: str
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        started.set()
        await release.wait()

    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix)
    assert worker.health() == WorkerHealth(state="stopped")
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue, worker:
        assert worker.health().ready and worker.health().jobs == 0
        await queue.add("send", {})
        await asyncio.wait_for(started.wait(), 10)
        assert worker.health().jobs == 1 and worker.health().longest_job > 0
        release.set()
    assert not worker.health().alive


async def test_a_paused_worker_is_alive_but_not_ready(valkey_url: str, prefix: str) -> None:
    async with Worker(QUEUE, lambda job: None, redis=valkey_url, prefix=prefix) as worker:
        await worker.pause()
        assert worker.health().alive and not worker.health().ready
        worker.resume()
        assert worker.health().ready


async def test_a_worker_without_its_server_is_alive_but_not_ready(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    async with Worker(QUEUE, lambda job: None, redis=server.url, prefix=prefix, drain_delay=0.2) as worker:
        await asyncio.to_thread(server.stop)
        await until(lambda: not worker.health().connected)
        assert worker.health().alive and not worker.health().ready
        server.start()
        await until(lambda: worker.health().ready)


async def test_a_worker_whose_sweeps_never_end_is_not_alive(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    worker = Worker(QUEUE, lambda job: None, redis=server.url, prefix=prefix, stalled_check_interval=0.05)
    async with worker:
        assert worker.health().sweeping
        server.freeze()
        try:
            await until(lambda: not worker.health().sweeping)
            assert not worker.health().alive
        finally:
            server.thaw()
        await until(lambda: worker.health().sweeping)
