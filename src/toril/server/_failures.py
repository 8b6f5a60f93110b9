"""Turns refusals of the operating system and replies of the supervisor into errors."""

from __future__ import annotations

import errno
from typing import Any

from toril.errors import (
    DiskFull,
    EmbeddedServerFailed,
    FolderTooNew,
    FolderUnusable,
    PortTaken,
    ServerStartFailed,
)

# An exceeded quota or file-size limit is treated as a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def from_os(folder: str, error: OSError) -> FolderUnusable:
    """Returns the error for a refusal of the operating system."""
    return (DiskFull if error.errno in _FULL else FolderUnusable)(folder, str(error))


def from_supervisor(folder: str, failure: dict[str, Any]) -> EmbeddedServerFailed:
    """Returns the error for a failure that the supervisor reported."""
    problem = str(failure.get("problem", "the supervisor refused"))
    match failure.get("kind"):
        case "folder":
            return FolderUnusable(folder, problem)
        case "disk-full":
            return DiskFull(folder, problem)
        case "too-new":
            return FolderTooNew(folder, problem)
        case "port":
            return PortTaken(int(failure["port"]), problem)
        case _:
            return ServerStartFailed(folder, problem, str(failure.get("log", "")))
