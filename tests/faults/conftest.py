"""A queue under attack, a proxy that harms chosen calls, and processes that are there to be killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.faults.worker_processes import Fleet
from tests.servers import Server
from toril import Job, Queue, Worker
from toril.transport import AsyncTransport

QUEUE = "work"
Make = Callable[..., Worker]


async def nothing(_: Job[Any]) -> None: ...


async def reached(condition: Callable[[], bool], within: float = 15.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def make(valkey: Server, prefix: str) -> Make:
    """A worker of the queue under attack: `make(handler, concurrency=2)`."""
    return lambda handler, **options: Worker(QUEUE, handler, redis=valkey.url, prefix=prefix, **options)


@pytest.fixture
async def under_attack(valkey: Server, prefix: str) -> AsyncIterator[Queue]:
    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        yield queue


@pytest.fixture
async def behind(valkey: Server) -> AsyncIterator[AsyncTransport]:
    """For what happens behind the worker's back."""
    async with AsyncTransport(valkey.url) as transport:
        yield transport


@pytest.fixture
def bad_network(valkey: Server) -> Iterator[Proxy]:
    with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def fleet(prefix: str) -> Iterator[Callable[..., Fleet]]:
    """Worker processes: `fleet(url, lock=1.0)`; whatever still lives at the end is killed."""
    fleets: list[Fleet] = []

    def make(url: str, **options: object) -> Fleet:
        fleets.append(Fleet(url, prefix, QUEUE, **options))
        return fleets[-1]

    yield make
    for one in fleets:
        one.end()
