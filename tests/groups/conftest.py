"""What tests of groups share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from toril import Job, Queue, Worker

QUEUE = "tenants"
Handle = Callable[[Job[Any]], Awaitable[object]]


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, events_max_len=200_000) as queue:
        yield queue


@pytest.fixture
def make_worker(valkey_url: str, prefix: str) -> Callable[..., Worker]:
    """Makes workers of the queue."""

    async def nothing(_: Job[Any]) -> None: ...

    def make(handle: Handle = nothing, **options: Any) -> Worker:
        return Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, **options)

    return make
