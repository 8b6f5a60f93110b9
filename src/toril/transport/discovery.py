"""Finds the queues of a server by their keys.

Guarantee: keys are read by SCAN, about `STEP` keys of a node in one call, on every node of a cluster. Nothing is
written, and no list of queues is needed: BullMQ keeps none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, cast

from toril.commands.command import Command, plain
from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.transport._async import AsyncTransport
from toril.transport.address import Address

if TYPE_CHECKING:
    from toril.transport._blocking import BlockingTransport

QueueKind = Literal["bullmq", "list", "stream"]
AnyKeys = QueueKeys | ListKeys | StreamKeys

# Keys read in one call: well below a millisecond of the server's time.
STEP: Final = 2_000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, order=True)
class FoundQueue:
    """A queue and the layout of its keys."""

    kind: QueueKind
    name: str
    prefix: str
    env: str = ""
    hash_tag: bool = False
    # Its key is no UTF-8 text: the queue is counted and cannot be read. The name has escapes for those bytes.
    undecodable: bool = False

    def __str__(self) -> str:
        return self.name if self.kind == "bullmq" else f"{self.kind}:{self.name}"

    @property
    def keys(self) -> AnyKeys:
        """The keys of the queue, whatever its name is: it exists."""
        return self._keys(found=True)

    def refusal(self) -> InvalidOption | None:
        """Returns why toril would not create a queue of this name; None if it would."""
        try:
            self._keys(found=False)
        except InvalidOption as error:
            return error
        return None

    def _keys(self, *, found: bool) -> AnyKeys:
        match self.kind:
            case "bullmq":
                return QueueKeys(self.name, self.prefix, self.hash_tag, found=found)
            case "list":
                return ListKeys(self.name, self.prefix, self.env, self.hash_tag, found=found)
            case "stream":
                return StreamKeys(self.name, self.prefix, self.env, self.hash_tag, found=found)

    @classmethod
    def named(cls, text: str, *, prefix: str | None, env: str, cluster: bool) -> FoundQueue:
        """Returns the queue that `NAME`, `list:NAME` or `stream:NAME` stands for; raises InvalidOption for others."""
        kind, colon, name = text.partition(":")
        if colon and kind not in ("list", "stream"):
            raise InvalidOption(
                "queue", f"{text!r} has no known kind", "write NAME, list:NAME or stream:NAME"
            )
        if colon:
            queue = cls(cast("QueueKind", kind), name, prefix or ENVELOPE_PREFIX, env, cluster)
        else:
            queue = cls("bullmq", text, prefix or BULLMQ_PREFIX, hash_tag=cluster)
        if (refusal := queue.refusal()) is not None:
            raise refusal
        return queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSearch:
    """The queues of one kind under one prefix: which keys to scan, and which queue a key belongs to."""

    kind: QueueKind
    prefix: str
    env: str = ""

    @property
    def pattern(self) -> str:
        """The MATCH pattern of SCAN."""
        if self.kind == "bullmq":
            return f"{escape_pattern(self.prefix)}:*:meta"
        return f"{escape_pattern(self._key_start())}:*"

    def queue_of(self, key: str) -> tuple[FoundQueue, str] | None:
        """Returns the queue that a key belongs to and the part of the key after its name; None for another key."""
        match = re.fullmatch(self._expression(), key, re.DOTALL)
        if match is None:
            return None
        name, rest = match[1], match[2] or ""
        # `{emails}` is the queue emails with a hash tag, unless the prefix has the tag already.
        tagged = name.startswith("{") and name.endswith("}") and len(name) > 2 and "{" not in self.prefix
        env = "" if self.kind == "bullmq" else self.env
        name = name[1:-1] if tagged else name
        undecodable = not is_decodable(name)
        if undecodable:
            name = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return FoundQueue(self.kind, name, self.prefix, env, tagged, undecodable), rest

    def _expression(self) -> str:
        if self.kind == "bullmq":
            return re.escape(self.prefix) + r":([^:]+)(:meta)"
        return re.escape(self._key_start()) + r":([^:]+)(:.*)?"

    def _key_start(self) -> str:
        return f"{self.prefix}:{self.env}:{'queue' if self.kind == 'list' else 'stream'}"


def escape_pattern(text: str) -> str:
    """Returns a SCAN pattern that matches only this text."""
    return re.sub(r"([\\\[\]*?^])", r"\\\1", text)


async def find_queues(
    transport: AsyncTransport, *, prefix: str | None = None, env: str = "prod"
) -> list[FoundQueue]:
    """Returns all queues under a prefix, by kind and name. `None` means the default prefix of each kind."""
    searches = (
        QueueSearch(kind="bullmq", prefix=prefix or BULLMQ_PREFIX),
        QueueSearch(kind="list", prefix=prefix or ENVELOPE_PREFIX, env=env),
        QueueSearch(kind="stream", prefix=prefix or ENVELOPE_PREFIX, env=env),
    )
    found: set[FoundQueue] = set()
    async for node in nodes_of(transport):
        for search in searches:
            async for page in scan_pages(node, search.pattern):
                found.update(queue[0] for key in page if (queue := search.queue_of(key)) is not None)
    return sorted(found)


def blocking_search(transport: BlockingTransport, search: QueueSearch) -> Iterator[tuple[FoundQueue, str]]:
    """Yields what `queue_of` returns for each key of the queues of one kind."""
    for node in _blocking_nodes_of(transport):
        cursor = "0"
        while True:
            cursor, page = node.run(_scan_step(cursor, search.pattern))
            yield from (queue for key in page if (queue := search.queue_of(key)) is not None)
            if cursor == "0":
                break


async def scan_pages(transport: AsyncTransport, pattern: str) -> AsyncIterator[list[str]]:
    """Yields the matching keys of one node, one list per call; a list may be empty.

    Bytes of a key that are no UTF-8 are lone surrogates in it: see `is_decodable`.
    """
    cursor = "0"
    while True:
        cursor, page = await transport.run(_scan_step(cursor, pattern))
        yield page
        if cursor == "0":
            return


def _scan_step(cursor: str, pattern: str) -> Command[tuple[str, list[str]]]:
    return plain(_decode_page, "SCAN", cursor, "MATCH", pattern, "COUNT", STEP)


def _decode_page(reply: tuple[bytes, list[bytes]]) -> tuple[str, list[str]]:
    cursor, keys = reply
    return cursor.decode(), [key.decode(errors="surrogateescape") for key in keys]


def is_decodable(key: str) -> bool:
    """Returns whether a scanned key is UTF-8 text; another one cannot be sent back to the server."""
    return key.isprintable() or not _SURROGATE.search(key)


async def nodes_of(transport: AsyncTransport) -> AsyncIterator[AsyncTransport]:
    """Yields a transport for each node that holds keys: a command without a key reaches one node only."""
    if not transport.is_cluster:
        yield transport
        return
    for address in _primaries(transport.address, await transport.run(plain(list, "CLUSTER", "SLOTS"))):
        async with AsyncTransport(address, policy=transport.policy) as node:
            yield node


def _blocking_nodes_of(transport: BlockingTransport) -> Iterator[BlockingTransport]:
    if not transport.is_cluster:
        yield transport
        return
    for address in _primaries(transport.address, transport.run(plain(list, "CLUSTER", "SLOTS"))):
        with type(transport)(address, policy=transport.policy) as node:
            yield node


def _primaries(cluster: Address, slots: list[tuple[int, int, tuple[bytes, int]]]) -> list[Address]:
    """Returns the address of each primary once; an empty host name means the host that was asked."""
    nodes = [(primary[0].decode() or cluster.nodes[0][0], int(primary[1])) for _, _, primary, *_ in slots]
    return [replace(cluster, kind="single", nodes=(node,)) for node in dict.fromkeys(nodes)]
