"""Stores of both kinds, closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.integration.transport.transport_adapters import ADAPTERS, QUICK, TransportAdapter
from toril.transport import ConnectionPolicy

OpenStore = Callable[..., TransportAdapter]


@pytest.fixture(params=["async", "blocking"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs twice: with the asyncio driver and with the blocking one."""
    kind: str = request.param
    return kind


@pytest.fixture
async def open_transport(driver: str) -> AsyncIterator[OpenStore]:
    """`open_transport(address, policy)`: a store of the kind under test.

    Ask for it after the server: what is asked for last is closed first, and a server wants to see all closed.
    """
    opened: list[TransportAdapter] = []

    def open_one(
        redis: Any = None, policy: ConnectionPolicy = QUICK, name: str | None = None
    ) -> TransportAdapter:
        opened.append(ADAPTERS[driver](redis, policy, name))
        return opened[-1]

    yield open_one
    for adapter in opened:
        await adapter.close()
