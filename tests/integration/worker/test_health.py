"""How a worker says it is, through its life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import Server, free_port
from toril import Job, ListQueue, ListWorker, Queue, StreamQueue, StreamWorker, Worker
from toril.commands.command import Command
from toril.commands.overview import any_overview
from toril.observe.overview import read_overview
from toril.transport import AsyncTransport
from toril.transport.discovery import find_queues
from toril.worker import WorkerHealth

QUEUE = "emails"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_worker_is_ready_from_start_to_stop_and_counts_its_active_jobs(
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


async def test_a_worker_that_waits_for_its_first_connection_is_alive_but_not_ready(prefix: str) -> None:
    worker = Worker(QUEUE, lambda job: None, redis=f"redis://127.0.0.1:{free_port()}", prefix=prefix)
    starting = asyncio.create_task(worker.run())
    await until(lambda: worker.health().state == "connecting")
    assert worker.health().alive and not worker.health().ready and not worker.health().connected
    await worker.stop()
    await starting
    assert not worker.health().alive


async def test_a_worker_that_is_never_idle_is_seen_by_others_from_its_start(
    server_url: str, prefix: str
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        started.set()
        await release.wait()

    async with Queue(QUEUE, redis=server_url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {})] * 3)
        async with Worker(QUEUE, handle, redis=server_url, prefix=prefix) as worker:
            await asyncio.wait_for(started.wait(), 10)
            assert [one.worker_id for one in await queue.get_workers()] == [worker.id]
            release.set()


@pytest.mark.parametrize("kind", ["bullmq", "list", "stream"])
async def test_a_worker_that_stopped_leaves_its_figures_and_is_counted_no_more(
    valkey_url: str, prefix: str, kind: str
) -> None:
    queues: dict[str, Any] = {"bullmq": Queue, "list": ListQueue, "stream": StreamQueue}
    workers: dict[str, Any] = {"bullmq": Worker, "list": ListWorker, "stream": StreamWorker}
    async with (
        queues[kind](QUEUE, redis=valkey_url, prefix=prefix) as queue,
        AsyncTransport(valkey_url) as transport,
    ):
        await queue.add_bulk([("send", {})] * 3)
        async with workers[kind](QUEUE, lambda _: None, redis=valkey_url, prefix=prefix) as worker:
            await until_reported(transport, queue.keys)
            await worker.run_until_idle()
        found = await transport.run(overview_of(queue.keys))
        assert [(one["worker"], one["state"], one["processed"]) for one in found.workers] == [
            (worker.id, "stopped", 3)
        ]
        overview = await read_overview(transport, await find_queues(transport, prefix=prefix))
        assert [one.workers for one in overview.queues] == [[]]


def overview_of(keys: Any) -> Command[Any]:
    return any_overview(keys)


async def until_reported(transport: AsyncTransport, keys: Any) -> None:
    async with asyncio.timeout(30):
        while not (await transport.run(overview_of(keys))).workers:
            await asyncio.sleep(0.01)
