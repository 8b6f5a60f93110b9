"""The use of a server: counted per process, and given back.

Guarantee: however often a process leases a folder, it is one user, until its last lease is released or it ends.
"""

from __future__ import annotations

import atexit
import os
import threading
from types import TracebackType
from typing import Self, get_args

from toril.errors import InvalidOption
from toril.server._client import SupervisorClient
from toril.server._folder import DEFAULT_FOLDER, Folder
from toril.server._settings import Fsync, ServerSettings


class Lease:
    """One holder's use of a server, which runs at least until `release`."""

    def __init__(self, membership: SupervisorClient) -> None:
        self._membership: SupervisorClient | None = membership
        self.folder = membership.folder.root
        self.url = membership.folder.url
        self.port: int | None = membership.facts["port"]

    @property
    def tcp_url(self) -> str | None:
        """The address on loopback, if somebody asked for a port."""
        return f"redis://127.0.0.1:{self.port}" if self.port else None

    def release(self, *, wait: bool = False) -> None:
        """Gives the use back; further calls do nothing. `wait`: return when the server is down or has other users."""
        membership, self._membership = self._membership, None
        if membership is not None:
            _registry.give_back(membership, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease({self.url!r}{'' if self._membership else ', released'})"


def lease(
    where: str | os.PathLike[str] = DEFAULT_FOLDER,
    *,
    port: int | None = None,
    fsync: Fsync = "everysec",
    timeout: float = 30.0,
) -> Lease:
    """The right to use the server of a folder, which is started if nobody uses it yet.

    `where` is the folder or its address (`embedded:`, `embedded:/path`). Blocks until the server answers, commonly for
    a tenth of a second. A lease that is never released ends with the process.
    """
    return Lease(_registry.take(Folder.at(where), _checked(port, fsync), timeout))


class _Registry:
    """The memberships of this process, one for each folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[Folder, SupervisorClient] = {}

    def take(self, folder: Folder, settings: ServerSettings, seconds: float) -> SupervisorClient:
        with self._lock:
            membership = self._members.get(folder)
            if membership is not None and membership.is_usable():
                membership.adapt(settings, seconds)
            else:
                membership = self._members[folder] = SupervisorClient(folder, settings, seconds)
            membership.leases += 1
        return membership

    def give_back(self, membership: SupervisorClient, *, wait: bool) -> None:
        with self._lock:
            membership.leases -= 1
            if membership.leases:
                return
            if self._members.get(membership.folder) is membership:
                del self._members[membership.folder]
        membership.leave(wait=wait)

    def leave_all(self) -> None:
        """At the end of the process: the kernel would do it too, but less tidily."""
        while self._members:
            self._members.popitem()[1].leave(wait=False)

    def note_fork(self) -> None:
        for membership in self._members.values():
            membership.note_fork()

    def continue_in_child(self) -> None:
        self._lock = threading.Lock()
        for membership in self._members.values():
            membership.continue_in_child()


_registry = _Registry()
atexit.register(_registry.leave_all)
os.register_at_fork(after_in_parent=_registry.note_fork, after_in_child=_registry.continue_in_child)


def _checked(port: int | None, fsync: Fsync) -> ServerSettings:
    if port is not None and not 0 <= port <= 65535:
        raise InvalidOption(
            "port", f"{port} is not a port", "give 1…65535, 0 for any free one, or None for none"
        )
    if fsync not in get_args(Fsync):
        raise InvalidOption("fsync", f"{fsync!r} is unknown", f"give one of {', '.join(get_args(Fsync))}")
    return ServerSettings(port=port, fsync=fsync)
