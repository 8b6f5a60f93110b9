"""Servers as they should be, for tests that plant one thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import Server


@pytest.fixture(params=["start_valkey", "start_redis7"])
def healthy(request: pytest.FixtureRequest) -> Server:
    """A server about which there is nothing to say."""
    start: Callable[..., Server] = request.getfixturevalue(request.param)
    return start(appendonly="yes", appendfsync="everysec")
