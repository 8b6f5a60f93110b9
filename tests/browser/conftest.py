"""A site on loopback, and browser tasks that may visit it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser.site import Site
from toril.browser import BrowserOptions, BrowserTasks


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
async def tasks() -> AsyncIterator[BrowserTasks]:
    """Tasks that may visit 127.0.0.1 and no other private address."""
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.1",), timeout=40)) as tasks:
        yield tasks
