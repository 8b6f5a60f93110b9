"""Servers as they should be, for tests that plant one thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import Server


@pytest.fixture
def healthy(start_valkey: Callable[..., Server]) -> Server:
    """A server about which there is nothing to say."""
    return start_valkey(appendonly="yes", appendfsync="everysec")
