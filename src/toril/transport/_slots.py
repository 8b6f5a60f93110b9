"""Which node of a cluster holds a key: a table of slots, learned from CLUSTER SLOTS and mended by MOVED."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot

from toril.commands.command import Command

Node = tuple[str, int]

# Commands that name no key may go to any node.
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
    """The key by which a command finds its node; None for those that have no key."""
    if command.keys:
        return command.keys[0]
    words = command.args
    name = str(words[0]).upper()
    if name in _KEYLESS:
        return None
    if name in ("XREAD", "XREADGROUP"):
        return _word(words[words.index("STREAMS") + 1])
    if name in ("XINFO", "XGROUP", "OBJECT", "MEMORY"):
        return _word(words[2])
    return _word(words[1])


def _word(word: Any) -> str | bytes:
    return word if isinstance(word, (str, bytes)) else str(word)


class SlotMap:
    """Slot → node, as last heard."""

    def __init__(self, seeds: Sequence[Node]) -> None:
        self.seeds = list(seeds)
        self.known = False
        self._home: dict[int, Node] = {}
        self._nodes: list[Node] = list(seeds)

    @property
    def nodes(self) -> list[Node]:
        """Nodes that may be asked, those known to hold slots first."""
        return [*self._nodes, *(seed for seed in self.seeds if seed not in self._nodes)]

    def learn(self, reply: Sequence[Any], asked: Node) -> None:
        """Takes a reply to CLUSTER SLOTS; an empty host name means the node that was asked."""
        home: dict[int, Node] = {}
        nodes: dict[Node, None] = {}
        for first, last, primary, *_ in reply:
            host = primary[0].decode() if primary[0] else ""
            node = (host or asked[0], int(primary[1]))
            nodes[node] = None
            home.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        # The one that answered is alive: what names no key goes there.
        ordered = sorted(nodes, key=lambda node: node != asked)
        self._home, self._nodes, self.known = home, ordered or list(self.seeds), bool(home)

    def moved(self, slot: int, node: Node) -> None:
        self._home[slot] = node

    def forget(self) -> None:
        """The table is doubtful: ask again before the next call."""
        self.known = False

    def node_of(self, key: str | bytes | None) -> Node | None:
        """The node of a key; None when its slot is unassigned as far as we know."""
        if key is None:
            return self._nodes[0]
        data = key.encode() if isinstance(key, str) else key
        return self._home.get(key_slot(data))

    def known_node_of(self, key: str | bytes | None) -> Node | None:
        """Returns the node of a key; None also when the table of slots must be read first."""
        return self.node_of(key) if self.known else None
