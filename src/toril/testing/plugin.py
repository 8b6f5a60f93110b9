"""Fixtures for pytest. They are found by the entry point of toril: nothing is to be imported.

    toril_url       the address of an embedded server, one for all tests of a run
    toril_prefix    the first part of all keys of this test: its own namespace
    toril_queue     a queue in the namespace of this test
    toril_worker    makes a worker of that queue: async with toril_worker(handler): …
    toril_app       connects an app to the server and the namespace: toril_app(app)
    toril_clock     a `TestClock` that is reset after the test

Guarantee: loading this module imports neither Redis nor the packages of toril; the first fixture does.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from toril import App, Queue, Worker
    from toril.testing import TestClock

try:  # Fixtures that are coroutines belong to the plugin that runs them.
    from pytest_asyncio import fixture as async_fixture
except ImportError:  # pragma: no cover  # anyio runs those of pytest
    async_fixture = pytest.fixture  # type: ignore[assignment]


@pytest.fixture(scope="session")
def toril_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an embedded server, which ends with the test run."""
    from toril.server import EmbeddedServer

    with EmbeddedServer(tmp_path_factory.mktemp("toril")) as server:
        yield server.url


@pytest.fixture
def toril_prefix() -> str:
    """The first part of all keys of this test."""
    return f"test{uuid.uuid4().hex[:12]}"


@async_fixture
async def toril_queue(toril_url: str, toril_prefix: str) -> AsyncIterator[Queue]:
    """A queue that no other test has."""
    from toril import Queue

    async with Queue("test", redis=toril_url, prefix=toril_prefix) as queue:
        yield queue


@pytest.fixture
def toril_worker(toril_url: str, toril_prefix: str) -> Callable[..., Worker]:
    """Makes a worker of the queue `toril_queue`, not started yet: `toril_worker(handler, **options)`."""
    from toril import Worker

    def make(handler: Any, *, queue: str = "test", **options: Any) -> Worker:
        return Worker(queue, handler, redis=toril_url, prefix=toril_prefix, **options)

    return make


@pytest.fixture
def toril_app(toril_url: str, toril_prefix: str) -> Iterator[Callable[[App], App]]:
    """Connects an app to the server and the namespace of this test; afterwards it has its own settings again."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def connect(app: App) -> App:
            stack.enter_context(app.configured(redis=toril_url, prefix=toril_prefix))
            return app

        yield connect


@pytest.fixture
def toril_clock() -> Iterator[TestClock]:
    """A clock that is reset after the test."""
    from toril.testing import TestClock

    with TestClock() as clock:
        yield clock
