"""Why an embedded server cannot be had.

    EmbeddedServerFailed                  (toril.errors)
    ├── ServerMissing                     no server binary on this machine
    ├── FolderUnusable                    the folder cannot hold a server: .folder
    │   └── NoRoom                           its disk is full
    ├── FolderTooNew                      its data was written by a newer server: .folder
    ├── PortTaken                         another program listens there, or the server has another port: .port
    ├── ServerNotReady (TimeoutError)     no answer in time: .folder .seconds
    └── ServerStartFailed                 the server ended instead of starting: .folder .log

Guarantee: every message ends with what to do.
"""

from __future__ import annotations

import errno
from typing import Any

from toril.errors import EmbeddedServerFailed

__all__ = [
    "EmbeddedServerFailed",
    "FolderTooNew",
    "FolderUnusable",
    "NoRoom",
    "PortTaken",
    "ServerMissing",
    "ServerNotReady",
    "ServerStartFailed",
    "from_os",
    "from_supervisor",
]


class ServerMissing(EmbeddedServerFailed):
    """There is no server binary to start."""

    def __init__(self, problem: str) -> None:
        super().__init__(f'{problem}; run `pip install "toril[server]"`, or give the URL of a running server')


class FolderUnusable(EmbeddedServerFailed):
    """The folder cannot be created, written or locked."""

    remedy = "give a folder that you may write to"

    def __init__(self, folder: str, problem: str) -> None:
        super().__init__(f"{folder}: {problem}; {self.remedy}")
        self.folder = folder
        self.problem = problem


class NoRoom(FolderUnusable):
    """The disk of the folder takes no more data."""

    remedy = "free some space on its disk"


class FolderTooNew(EmbeddedServerFailed):
    """The data in the folder needs a newer server."""

    def __init__(self, folder: str, problem: str) -> None:
        super().__init__(
            f"{folder}: the data was written by a newer server ({problem}); "
            'upgrade it with `pip install -U "toril[server]"`. Nothing in the folder was changed'
        )
        self.folder = folder
        self.problem = problem


class PortTaken(EmbeddedServerFailed):
    """The server cannot listen on the port."""

    def __init__(self, port: int, problem: str) -> None:
        super().__init__(f"port {port}: {problem}; choose another port, 0 for any free one, or none at all")
        self.port = port
        self.problem = problem


class ServerNotReady(EmbeddedServerFailed, TimeoutError):
    """Nobody answered in time."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__(
            f"{folder}: the server was not ready within {seconds:g} s; "
            "give more time (a large folder takes long to load), and see server.log there"
        )
        self.folder = folder
        self.seconds = seconds


class ServerStartFailed(EmbeddedServerFailed):
    """The server ended instead of starting."""

    def __init__(self, folder: str, problem: str, log: str = "") -> None:
        said = f"\n{log}" if log else ""
        super().__init__(f"{folder}: {problem}; see server.log there{said}")
        self.folder = folder
        self.problem = problem
        self.log = log


# A quota and a limit of the process are full disks to us.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def from_os(folder: str, error: OSError) -> FolderUnusable:
    """The error for what the system refused."""
    return (NoRoom if error.errno in _FULL else FolderUnusable)(folder, str(error))


def from_supervisor(folder: str, failure: dict[str, Any]) -> EmbeddedServerFailed:
    """The error for what a keeper answered."""
    problem = str(failure.get("problem", "the keeper refused"))
    match failure.get("kind"):
        case "folder":
            return FolderUnusable(folder, problem)
        case "room":
            return NoRoom(folder, problem)
        case "too-new":
            return FolderTooNew(folder, problem)
        case "port":
            return PortTaken(int(failure["port"]), problem)
        case _:
            return ServerStartFailed(folder, problem, str(failure.get("log", "")))
