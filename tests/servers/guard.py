"""Finds what a test leaves behind on a server, and cleans up after it.

Guarantee: when a guarded block ends, the server has no key left and every connection opened inside the block is
closed; otherwise the block fails with the names of what was left. The server's own links are not counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import redis

from tests.servers.process import Server

CLOSED_WITHIN = (
    3.0  # Seconds; the server notices a closed socket on its next turn, a busy machine takes some.
)
SHOWN = 10


class LeftBehind(AssertionError):
    """A test left keys outside its namespace, or open connections."""


@contextlib.contextmanager
def guarded(servers: Sequence[Server], prefix: str, *, any_key: bool = False) -> Iterator[None]:
    """Allow keys that start with `prefix` (or its hash tag) only; `any_key` is for tests about the whole keyspace."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for server in servers]
        before = [_connections(client).keys() for client in clients]
        yield
        leftovers = [
            line for client in clients for line in ([] if any_key else _strange_keys(client, prefix))
        ]
        for client in clients:
            _wipe(client)
        for client, known in zip(clients, before, strict=True):
            leftovers += _open_connections(client, set(known))
    if leftovers:
        raise LeftBehind("left behind on the server:\n  " + "\n  ".join(leftovers[:SHOWN]))


def _strange_keys(client: redis.Redis, prefix: str) -> list[str]:
    allowed = (prefix.encode(), b"{" + prefix.encode())
    found: Iterator[bytes] = client.scan_iter(count=1000)
    return [f"key {key!r} outside of {prefix!r}" for key in found if not key.startswith(allowed)]


def _wipe(client: redis.Redis) -> None:
    # A replica refuses; its primary's flush reaches it.
    with contextlib.suppress(redis.ReadOnlyError):
        client.flushall()


def _open_connections(client: redis.Redis, known: set[str]) -> list[str]:
    deadline = time.monotonic() + CLOSED_WITHIN
    while True:
        left = {identity: line for identity, line in _connections(client).items() if identity not in known}
        if not left or time.monotonic() > deadline:
            return [f"connection {line}" for line in left.values()]
        time.sleep(0.01)


def _connections(client: redis.Redis) -> dict[str, str]:
    """Connections of clients by id, without those of the server to its replicas and of Sentinels that watch it."""
    listed: list[dict[str, str]] = client.client_list(_type="normal") + client.client_list(_type="pubsub")
    return {
        entry["id"]: _describe(entry) for entry in listed if not entry.get("name", "").startswith("sentinel-")
    }


def _describe(entry: dict[str, str]) -> str:
    return f"{entry['addr']} name={entry.get('name', '')!r} last command={entry.get('cmd')} age={entry.get('age')} s"
