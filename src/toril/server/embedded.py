"""The server of a folder, used for the duration of a block of code.

    with EmbeddedServer("./data", port=None) as server:
        ...  # server.url

Guarantee: inside the block the server answers at `url`. After it, if no other process uses the folder, the server has
ended and the folder may be moved or deleted.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from toril.errors import Closed
from toril.server._lease import Lease, lease
from toril.server._settings import Fsync
from toril.server._status import ServerStatus, status
from toril.server.folder import DEFAULT_FOLDER, Folder


class EmbeddedServer:
    """The server of the folder `path`: started if it does not run, shared otherwise."""

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_FOLDER,
        *,
        port: int | None = None,
        fsync: Fsync = "everysec",
        timeout: float = 30.0,
    ) -> None:
        """`port`: also listen on loopback there (0: any free port). `fsync="always"`: a power cut loses nothing.
        `timeout`: seconds until the server must answer."""
        self.path = Folder.at(path).root  # resolved now: a later change of directory must not move the data
        self._port = port
        self._fsync: Fsync = fsync
        self._timeout = timeout
        self._lease: Lease | None = None

    @property
    def url(self) -> str:
        """The address of the unix socket, `unix:///…`."""
        return self._open_lease().url

    @property
    def port(self) -> int | None:
        """The port on loopback, if any."""
        return self._open_lease().port

    @property
    def tcp_url(self) -> str | None:
        """The address on loopback, `redis://127.0.0.1:…`, if any."""
        return self._open_lease().tcp_url

    def start(self) -> Self:
        """Returns when the server answers; does nothing if it was called before."""
        if self._lease is None:
            self._lease = lease(self.path, port=self._port, fsync=self._fsync, timeout=self._timeout)
        return self

    def stop(self) -> None:
        """Ends this use of the server. If there is no other user, returns when the server has ended."""
        held, self._lease = self._lease, None
        if held is not None:
            held.release(wait=True)

    def status(self) -> ServerStatus:
        """Returns the status of the server, whether or not this object uses it."""
        return status(self.path)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"EmbeddedServer({str(self.path)!r}, {'running' if self._lease else 'not started'})"

    def _open_lease(self) -> Lease:
        if self._lease is None:
            raise Closed("the embedded server is not started; use `with EmbeddedServer(…)` or call start()")
        return self._lease
