"""A folder for one test, in which nothing may run on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server.users import User, processes_of, wait_until_gone


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty place for a server; a process that is left there fails the test."""
    place = tmp_path.resolve() / "x"
    yield place
    orphans = wait_until_gone(processes_of(place))
    for orphan in orphans:
        orphan.kill()
    assert not orphans, f"left running: {orphans}"


@pytest.fixture
def start_user(folder: Path) -> Iterator[Callable[..., User]]:
    """Starts another process that leases the folder; it ends with the test."""
    with ExitStack() as stack:

        def start(where: str | Path = folder, **settings: Any) -> User:
            user = User(where, **settings)
            stack.callback(user.is_killed)
            return user

        yield start


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on loopback that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
