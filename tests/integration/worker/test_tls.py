"""Queues, workers and events over TLS, asyncio and blocking, with certificates that are verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from toril import Queue, QueueEvents, Worker, sync
from toril.errors import RedisUnavailable
from toril.events import Gap
from toril.protocol.event import Event

if TYPE_CHECKING:
    from tests.conftest import TlsServer


async def test_a_job_goes_its_whole_way_over_tls(redis7_tls: TlsServer, prefix: str) -> None:
    url = redis7_tls.trusted_url

    def plainly(job: sync.Job) -> str:
        job.log("half way")  # over the blocking driver
        return str(job.data["say"])

    async with (
        Queue("secure", redis=url, prefix=prefix) as queue,
        QueueEvents("secure", redis=url, prefix=prefix) as events,
        Worker("secure", plainly, redis=url, prefix=prefix),
    ):
        job = await queue.add("n", {"say": "hello"})
        assert await job.wait_until_finished(timeout=20) == "hello"
        async with asyncio.timeout(20):
            assert "completed" in [event.type async for event in _until_completed(events)]
        assert (await queue.get_job_logs(job.id)).lines == ["half way"]


async def _until_completed(events: QueueEvents) -> AsyncIterator[Event | Gap]:
    async for event in events:
        yield event
        if event.type == "completed":
            return


def test_a_job_goes_its_whole_way_over_tls_without_an_event_loop(redis7_tls: TlsServer, prefix: str) -> None:
    url = redis7_tls.trusted_url
    with (
        sync.Queue("secure", redis=url, prefix=prefix) as queue,
        sync.Worker("secure", lambda job: job.data["say"], redis=url, prefix=prefix),
    ):
        assert queue.add("n", {"say": "hello"}).wait_until_finished(timeout=20) == "hello"


def test_a_worker_refuses_a_server_that_nobody_vouches_for(redis7_tls: TlsServer, prefix: str) -> None:
    worker = sync.Worker("secure", print, redis=redis7_tls.url, prefix=prefix, max_reconnect_attempts=1)
    with pytest.raises(RedisUnavailable, match=r"(?i)certificate verify failed"):
        worker.run()
