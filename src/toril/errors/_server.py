"""Errors of the embedded server.

Guarantee: every message ends with a remedy.
"""

from __future__ import annotations

from toril.errors._base import TorilError


class EmbeddedServerFailed(TorilError):
    """The embedded server did not start, or died."""


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


class DiskFull(FolderUnusable):
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
    """The server did not answer in time."""

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
        tail = f"\n{log}" if log else ""
        super().__init__(f"{folder}: {problem}; see server.log there{tail}")
        self.folder = folder
        self.problem = problem
        self.log = log
