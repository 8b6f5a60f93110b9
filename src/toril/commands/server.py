"""Reading about the server: its time, its facts and its clients.

Guarantee: nothing here changes anything, so every command may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

from toril.commands.command import Command, Replay, Reply, plain
from toril.protocol.keys import QueueKeys, client_name


def server_time() -> Command[float]:
    """Returns the server's time, in seconds."""
    return plain(lambda reply: int(reply[0]) + int(reply[1]) / 1e6, "TIME")


def server_info(section: str = "server") -> Command[dict[str, str]]:
    return plain(_info, "INFO", section)


def _info(reply: Reply) -> dict[str, str]:
    if isinstance(reply, Mapping):
        return {str(key): str(value) for key, value in reply.items()}
    pairs = (line.partition(":") for line in reply.decode(errors="replace").split("\r\n") if ":" in line)
    return {key: value for key, _, value in pairs}


def client_list(near: str | None = None) -> Command[list[dict[str, str]]]:
    """Returns the connected clients; on a cluster, those of the node that holds the key `near`."""
    return Command(("CLIENT", "LIST"), _clients, keys=(near,) if near else (), replay=Replay.SAFE)


def worker_clients(keys: QueueKeys) -> Command[list[dict[str, str]]]:
    """Returns the connections of the workers of a queue, of toril and of Node; on a cluster, of its node."""
    own = client_name(keys, "worker")

    def workers(reply: Reply) -> list[dict[str, str]]:
        clients = [(one.get("name", ""), one) for one in _clients(reply)]
        return [one for name, one in clients if name == own or name.startswith(f"{own}:w:")]

    return Command(("CLIENT", "LIST"), workers, keys=(keys.meta,), replay=Replay.SAFE)


def _clients(reply: Reply) -> list[dict[str, str]]:
    rows = reply.decode(errors="replace").split("\n")
    return [dict(field.partition("=")[::2] for field in row.split(" ")) for row in rows if row]
