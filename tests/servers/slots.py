"""Moving slots between the nodes of a cluster while clients work on their keys."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.servers.cluster import ValkeyCluster


class Mover:
    """Moves slots between nodes, key by key as resharding tools do, or at once as Valkey 9 can."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self.clients: list[Any] = [
            node.client() for node in cluster.nodes
        ]  # redis-py leaves raw calls untyped
        self.ids = [client.execute_command("CLUSTER", "MYID").decode() for client in self.clients]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def home(self, slot: int) -> int:
        for first, last, primary, *_ in self.clients[0].execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.ids.index(primary[2].decode())
        raise AssertionError(f"nobody has slot {slot}")

    async def move(self, slot: int) -> None:
        """To the next node, in small steps, with pauses for other calls."""
        source, target = self.home(slot), (self.home(slot) + 1) % len(self.clients)
        self._set(target, slot, "IMPORTING", source)
        self._set(source, slot, "MIGRATING", target)
        while keys := self.clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            self._send(source, target, keys)
            await asyncio.sleep(0.004)  # So that calls meet every stage.
        for node in (target, source, *range(len(self.clients))):
            self.clients[node].execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    def _set(self, node: int, slot: int, word: str, other: int) -> None:
        self.clients[node].execute_command("CLUSTER", "SETSLOT", slot, word, self.ids[other])

    def _send(self, source: int, target: int, keys: list[bytes]) -> None:
        port = self.clients[target].connection_pool.connection_kwargs["port"]
        self.clients[source].execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    async def move_at_once(self, slot: int) -> None:
        """To the next node; the slot's keys change hands in one moment."""
        source, target = self.home(slot), (self.home(slot) + 1) % len(self.clients)
        self.clients[source].execute_command(
            "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.ids[target]
        )
        while self.home(slot) != target:
            await asyncio.sleep(0.01)
