"""A queue and the means to wait for what a worker does, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from toril import Queue
from toril.protocol.state import JobState
from toril.transport import AsyncTransport

QUEUE = "work"
PATIENCE = 20.0  # seconds: the machines are noisy, and a test that fails may take its time


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
async def transport(valkey_url: str) -> AsyncIterator[AsyncTransport]:
    """For tests that meddle with the server behind the worker's back."""
    async with AsyncTransport(valkey_url) as transport:
        yield transport


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits until a condition of the server holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)
    assert what


async def until_state(queue: Queue, job_id: str, state: JobState | str) -> None:
    async def reached() -> bool:
        return await queue.get_job_state(job_id) == JobState(state)

    await until(reached, f"{job_id} is {state}")
