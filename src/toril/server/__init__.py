"""The embedded Valkey server of a folder.

    from toril.server import EmbeddedServer

    with EmbeddedServer("./data") as server:      # or redis="embedded:./data" wherever toril takes an address
        print(server.url)                         # unix:///…/data/run/valkey.sock

The processes of one folder:

    user process ──┐  control socket: an open connection is a user      ┌─ valkey-server
    user process ──┼────────────────────────────► supervisor ─ parent of ┤  AOF in data/, log in server.log
    user process ──┘  (the kernel closes it, even after kill -9)        └─ unix socket, optional loopback port

Guarantees. Processes that name the same folder share one server. It is ready when `lease` or `start` returns. It ends
with its last user or on request, after an fsync of its append-only file. After a kill -9 of users, of the supervisor or
of the server, no server is left running without users, nothing is lost that the server had written, and the remaining
users get a server under the same address. Standard library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toril.server._lease import Lease, lease
    from toril.server._status import ServerStatus, status, stop
    from toril.server.binary import server_binary
    from toril.server.embedded import EmbeddedServer
    from toril.server.folder import DEFAULT_FOLDER

# Imported on first use: the supervisor process loads this package, too, and needs none of them.
_MODULE_OF = {
    "DEFAULT_FOLDER": "toril.server.folder",
    "EmbeddedServer": "toril.server.embedded",
    "Lease": "toril.server._lease",
    "ServerStatus": "toril.server._status",
    "lease": "toril.server._lease",
    "server_binary": "toril.server.binary",
    "status": "toril.server._status",
    "stop": "toril.server._status",
}

__all__ = [
    "DEFAULT_FOLDER",
    "EmbeddedServer",
    "Lease",
    "ServerStatus",
    "lease",
    "server_binary",
    "status",
    "stop",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'toril.server' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
