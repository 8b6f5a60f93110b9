"""Three Valkeys that share the 16,384 slots of a cluster."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tests.servers.process import READY_WITHIN, Server, free_port, valkey_binary

SLOTS = 16_384
NODES = 3


class ValkeyCluster:
    """A cluster of three primaries without replicas."""

    def __init__(self) -> None:
        self.nodes = [Server(valkey_binary(), _settings()) for _ in range(NODES)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        for index, node in enumerate(self.nodes):
            self._join(node, first_slot=index * SLOTS // NODES, last_slot=(index + 1) * SLOTS // NODES - 1)
        self._wait_until_agreed()
        return self

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _join(self, node: Server, *, first_slot: int, last_slot: int) -> None:
        entry = self.nodes[0]
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first_slot, last_slot)
            if node is not entry:
                bus = entry.settings["cluster-port"]
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", entry.port, bus)

    def _wait_until_agreed(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while not all(_is_complete(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster's nodes did not agree on its slots")
            time.sleep(0.02)


def _settings() -> dict[str, str]:
    return {"cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": "2000"}


def _is_complete(node: Server) -> bool:
    with node.client() as client:
        reply: bytes | str = client.execute_command("CLUSTER", "INFO")
    text = reply.decode() if isinstance(reply, bytes) else reply
    facts = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
    return facts["cluster_state"] == "ok" and facts["cluster_size"] == str(NODES)
