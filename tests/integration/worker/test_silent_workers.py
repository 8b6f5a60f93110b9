"""Jobs of unknown names are not refused together while a worker is connected that announces no names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis

from tests.servers import Server
from toril import Queue, Worker
from toril.protocol.keys import client_name

JOBS = 600


async def nothing(_: Any) -> None:
    """A handler."""


async def fetched_jobs(server: Server, queue: Queue) -> int:
    """How many of the jobs a worker without a handler for them has fetched, when all are delayed."""
    await queue.add_bulk([("new", n) for n in range(JOBS)])
    async with asyncio.timeout(30), Worker(queue.name, {"old": nothing}, redis=server.url, concurrency=10):
        while (await queue.get_job_counts()).delayed < JOBS:
            await asyncio.sleep(0.01)
    jobs = await queue.get_jobs()
    return sum(job.attempts_started > 0 for job in jobs)


async def test_jobs_are_fetched_as_long_as_another_client_may_know_them(
    start_valkey: Callable[..., Server],
) -> None:
    server = start_valkey()
    async with Queue("emails", redis=server.url) as queue:
        node = redis.Redis.from_url(server.url, client_name=client_name(queue.keys, "worker"))
        node.ping()
        assert await fetched_jobs(server, queue) == JOBS
        node.close()
        await queue.drain(delayed=True)
        assert await fetched_jobs(server, queue) < JOBS / 2
