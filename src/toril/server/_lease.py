"""Leases on a server: counted per process.

Guarantee: however often a process leases a folder, it is one user, until its last lease is released or it ends.
"""

from __future__ import annotations

import atexit
import os
import threading
from types import TracebackType
from typing import Self, get_args

from toril.errors import InvalidOption, redact
from toril.server._client import SupervisorClient
from toril.server._settings import Fsync, ServerSettings
from toril.server.folder import DEFAULT_FOLDER, Folder


class Lease:
    """A use of a server, which runs at least until `release`."""

    def __init__(self, client: SupervisorClient) -> None:
        self._client: SupervisorClient | None = client
        self.folder = client.folder.root
        self.port: int | None = client.facts["port"]

    @property
    def url(self) -> str:
        """The address of the server, with its password if it has one; it gets one together with a port."""
        return Folder(self.folder).url

    @property
    def tcp_url(self) -> str | None:
        """The address on loopback with its password, if the server has a port."""
        return Folder(self.folder).tcp_url(self.port) if self.port else None

    def release(self, *, wait: bool = False) -> None:
        """Ends the use; further calls do nothing. `wait`: returns when the server has ended or has other users."""
        client, self._client = self._client, None
        if client is not None:
            _registry.release(client, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease({redact(self.url)!r}{'' if self._client else ', released'})"


def lease(
    where: str | os.PathLike[str] = DEFAULT_FOLDER,
    *,
    port: int | None = None,
    fsync: Fsync = "everysec",
    timeout: float = 30.0,
) -> Lease:
    """Returns a lease on the server of a folder, which is started if it does not run.

    `where` is the folder or its address (`embedded:`, `embedded:/path`). Blocks until the server answers, usually for
    a tenth of a second. A lease that is never released ends with the process.
    """
    return Lease(_registry.acquire(Folder.at(where), _checked(port, fsync), timeout))


class _Registry:
    """The clients of this process, one for each folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Folder, SupervisorClient] = {}

    def acquire(self, folder: Folder, settings: ServerSettings, seconds: float) -> SupervisorClient:
        with self._lock:
            client = self._clients.get(folder)
            if client is not None and client.is_usable():
                client.add_settings(settings, seconds)
            else:
                client = self._clients[folder] = SupervisorClient(folder, settings, seconds)
            client.leases += 1
        return client

    def release(self, client: SupervisorClient, *, wait: bool) -> None:
        with self._lock:
            client.leases -= 1
            if client.leases:
                return
            if self._clients.get(client.folder) is client:
                del self._clients[client.folder]
        client.detach(wait=wait)

    def detach_all(self) -> None:
        """Called at the end of the process. Without it, the kernel would close the connections."""
        while self._clients:
            self._clients.popitem()[1].detach(wait=False)

    def note_fork(self) -> None:
        for client in self._clients.values():
            client.note_fork()

    def continue_in_child(self) -> None:
        self._lock = threading.Lock()
        for client in self._clients.values():
            client.continue_in_child()


_registry = _Registry()
atexit.register(_registry.detach_all)
os.register_at_fork(after_in_parent=_registry.note_fork, after_in_child=_registry.continue_in_child)


def _checked(port: int | None, fsync: Fsync) -> ServerSettings:
    if port is not None and not 0 <= port <= 65535:
        raise InvalidOption(
            "port", f"{port} is not a port", "give 1…65535, 0 for any free one, or None for none"
        )
    if fsync not in get_args(Fsync):
        raise InvalidOption("fsync", f"{fsync!r} is unknown", f"give one of {', '.join(get_args(Fsync))}")
    return ServerSettings(port=port, fsync=fsync)
