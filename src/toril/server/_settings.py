"""The settings that a user may request, and how those of several users are merged.

Guarantee: merging never weakens the settings of an earlier user.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Fsync = Literal["always", "everysec", "no"]

_BY_SAFETY: tuple[Fsync, ...] = ("no", "everysec", "always")


class PortConflict(Exception):
    """The server already listens on another port."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """The settings that one user requests, or the merged settings of all users."""

    port: int | None = None
    """A TCP port on loopback beside the unix socket; 0 for any free one, None for none."""

    fsync: Fsync = "everysec"
    """When written data reaches the disk: a power cut costs nothing (`always`) or about a second."""

    def merged_with(self, other: ServerSettings) -> ServerSettings:
        """Returns these settings together with `other`. The stricter fsync is taken."""
        return replace(
            self, port=self._port_with(other.port), fsync=max(self.fsync, other.fsync, key=_BY_SAFETY.index)
        )

    def _port_with(self, wanted: int | None) -> int | None:
        if wanted is None:
            return self.port
        if self.port is None:
            return wanted
        if wanted not in {0, self.port}:
            raise PortConflict(f"the server of this folder already listens on port {self.port}")
        return self.port

    def as_message(self) -> dict[str, object]:
        return {"port": self.port, "fsync": self.fsync}

    @classmethod
    def from_message(cls, message: dict[str, object]) -> ServerSettings:
        """Raises ValueError for settings that are not valid."""
        port, fsync = message.get("port"), message.get("fsync", "everysec")
        if port is not None and not (type(port) is int and 0 <= port <= 65535):
            raise ValueError(f"{port!r} is not a port")
        if fsync not in _BY_SAFETY:
            raise ValueError(f"{fsync!r} is not a value of fsync")
        return cls(port=port, fsync=fsync)

    def arguments(self) -> list[str]:
        """Returns the server's command-line options: these settings and the fixed ones."""
        return [
            *("--port", str(self.port or 0)),
            *("--bind", "127.0.0.1"),
            *("--appendonly", "yes"),
            *("--appendfsync", self.fsync),
            *(
                "--save",
                "",
            ),  # The append-only file holds everything; snapshots beside it would only cost forks.
            # Kernels since 5.8 copy 4 KB of a large page after a fork, not all of it, and fork sooner for having them.
            *("--disable-thp", "no"),
            *("--maxmemory-policy", "noeviction"),  # An eviction of keys would lose jobs.
            *("--daemonize", "no"),
        ]
