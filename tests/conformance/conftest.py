"""Every test here runs on each kind of queue, on each kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conformance.kinds import KINDS, Kind

SERVERS = ("valkey", "redis7", "cluster")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
async def kind(request: pytest.FixtureRequest, url: str, prefix: str) -> AsyncIterator[Kind]:
    async with request.param(url, prefix).opened() as opened:
        yield opened
