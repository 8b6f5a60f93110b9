"""A queue and the means to wait for what a worker does, without sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.waiting import until_equal
from toril import Queue
from toril.protocol.state import JobState
from toril.transport import AsyncTransport

QUEUE = "work"
MAX_WAIT_SECONDS = 20.0  # seconds: the machines are noisy, and a test that fails may take its time


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
async def transport(valkey_url: str) -> AsyncIterator[AsyncTransport]:
    """For tests that meddle with the server behind the worker's back."""
    async with AsyncTransport(valkey_url) as transport:
        yield transport


async def until_state(queue: Queue, job_id: str, state: JobState | str) -> None:
    await until_equal(partial(queue.get_job_state, job_id), JobState(state))
