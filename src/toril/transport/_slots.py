"""Which node of a cluster serves a key: a table of slots, read by CLUSTER SLOTS and corrected by MOVED replies."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final, cast

from toril.commands.command import Arg, Command

Node = tuple[str, int]

SLOTS: Final = 16384

# Commands without a key; any node can run them.
_KEYLESS = frozenset(
    [
        "ACL",
        "CLIENT",
        "CLUSTER",
        "COMMAND",
        "CONFIG",
        "DBSIZE",
        "INFO",
        "LATENCY",
        "MODULE",
        "PING",
        "PUBLISH",
        "ROLE",
        "SCAN",
        "SCRIPT",
        "TIME",
    ]
)


def route_key(command: Command[Any]) -> str | bytes | None:
    """Returns the key that decides the node of a command; None for a command without a key."""
    if command.keys:
        return command.keys[0]
    words = command.args
    name = str(words[0]).upper()
    if name in _KEYLESS:
        return None
    if name in ("XREAD", "XREADGROUP"):
        return _key(words[words.index("STREAMS") + 1])
    if name in ("XINFO", "XGROUP", "OBJECT", "MEMORY"):
        return _key(words[2])
    return _key(words[1])


def _key(word: Arg) -> str | bytes:
    return word if isinstance(word, (str, bytes)) else str(word)


def key_slot(key: bytes) -> int:
    """Returns the slot of a key: the CRC16 of its part in braces, or of the whole key where it has none."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    hashed = key[start + 1 : end] if end > start + 1 else key
    return binascii.crc_hqx(hashed, 0) % SLOTS


class SlotMap:
    """The node of each slot, as last known."""

    def __init__(self, seeds: Sequence[Node]) -> None:
        self.seeds = list(seeds)
        self.known = False
        self._node_of_slot: dict[int, Node] = {}
        self._nodes: list[Node] = list(seeds)

    @property
    def nodes(self) -> list[Node]:
        """Nodes that can be asked for the slots; those known to serve slots come first."""
        return [*self._nodes, *(seed for seed in self.seeds if seed not in self._nodes)]

    def learn(self, reply: object, asked: Node) -> None:
        """Takes a reply to CLUSTER SLOTS; an empty host name means the node that was asked."""
        node_of_slot: dict[int, Node] = {}
        nodes: dict[Node, None] = {}
        for first, last, primary, *_ in cast("Sequence[Any]", reply):
            host = primary[0].decode() if primary[0] else ""
            node = (host or asked[0], int(primary[1]))
            nodes[node] = None
            node_of_slot.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        # The node that replied can be reached: commands without a key go there.
        ordered = sorted(nodes, key=lambda node: node != asked)
        self._nodes = ordered or list(self.seeds)
        self._node_of_slot, self.known = node_of_slot, bool(node_of_slot)

    def moved(self, slot: int, node: Node) -> None:
        self._node_of_slot[slot] = node

    def forget(self) -> None:
        """Makes the next call read the table again."""
        self.known = False

    def node_of(self, key: str | bytes | None) -> Node | None:
        """Returns the node of a key; None when its slot has no known node."""
        if key is None:
            return self._nodes[0]
        data = key.encode() if isinstance(key, str) else key
        return self._node_of_slot.get(key_slot(data))

    def known_node_of(self, key: str | bytes | None) -> Node | None:
        """Returns the node of a key; None also when the table of slots must be read first."""
        return self.node_of(key) if self.known else None
