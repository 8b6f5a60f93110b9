"""The status of a folder's server, and its stop for all users.

Guarantee: neither starts a server or counts as a user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toril.errors import ServerNotReady
from toril.server import _locks
from toril.server._attach import request
from toril.server._unsaved_warning import warn_about_unsaved_data
from toril.server.folder import DEFAULT_FOLDER, Folder


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatus:
    """The state of a folder's server at one moment."""

    folder: Path
    running: bool
    data_bytes: int
    """The size of the data on disk."""
    url: str
    """The address that the server has, or will have."""
    users: tuple[int, ...] = ()
    """The processes that use it."""
    phase: str = "stopped"
    """`stopped`, `starting`, `ready`, or `down`: it ended and is about to be started again."""
    port: int | None = None
    pid: int | None = None
    supervisor_pid: int | None = None
    version: str | None = None
    fsync: str | None = None
    ready_at: datetime | None = None
    restarts: int = 0
    """How often it ended and was started again."""


def status(where: str | os.PathLike[str] = DEFAULT_FOLDER) -> ServerStatus:
    """Returns the status of the server of a folder."""
    folder = Folder.at(where)
    answer = request(folder, {"want": "status"}, seconds=5.0) or {}
    return _status_of(folder, answer.get("status"))


def stop(where: str | os.PathLike[str] = DEFAULT_FOLDER, *, timeout: float = 30.0) -> bool:
    """Ends the server of a folder for all users. Returns when it has ended; False if it was not running.

    Its data is written and fsynced. It stays down until it is leased or started again.
    """
    folder = Folder.at(where)
    was_running = request(folder, {"want": "status"}, seconds=timeout) is not None
    if was_running:
        warn_about_unsaved_data(folder)
        request(folder, {"want": "stop"}, seconds=timeout)
        _wait_for_supervisor_end(folder, timeout)
    return was_running


def _wait_for_supervisor_end(folder: Folder, seconds: float) -> None:
    # The supervisor closes its connections a moment before it ends; its lock is free when it has ended.
    lock = _locks.lock_within(folder.supervisor_lock, seconds)
    if lock is None:
        raise ServerNotReady(str(folder.root), seconds)
    os.close(lock)


def _status_of(folder: Folder, facts: dict[str, Any] | None) -> ServerStatus:
    known: dict[str, Any] = {"folder": folder.root, "url": folder.url, "data_bytes": folder.data_bytes()}
    if facts is None:
        return ServerStatus(running=False, **known)
    ready_at = facts["ready_at"]
    return ServerStatus(
        **known,
        running=facts["phase"] == "ready",
        users=tuple(sorted({user["pid"] for user in facts["users"]})),
        phase=facts["phase"],
        port=facts["port"],
        pid=facts["pid"],
        supervisor_pid=facts["supervisor_pid"],
        version=facts["version"],
        fsync=facts["fsync"],
        ready_at=datetime.fromtimestamp(ready_at, UTC) if ready_at else None,
        restarts=facts["restarts"],
    )
