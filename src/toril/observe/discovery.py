"""Which queues there are on a server.

Guarantee: names are found by SCAN, in steps that hold up nobody, and only when somebody asks: BullMQ keeps no list of
its queues. Whoever looks often keeps a `Directory`, which searches again at its own pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from toril.commands.command import Command, plain
from toril.errors import InvalidOption, TorilError
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.transport import AsyncTransport

QueueKind = Literal["bullmq", "list", "stream"]
AnyKeys = QueueKeys | ListKeys | StreamKeys

BULLMQ_PREFIX: Final = "bull"
ENVELOPE_PREFIX: Final = "msaas"
# Keys looked at in one call: well below a millisecond of the server's time.
STEP: Final = 2_000


@dataclass(frozen=True, slots=True, order=True)
class FoundQueue:
    """A queue and how its keys are laid out."""

    kind: QueueKind
    name: str
    prefix: str
    env: str = ""
    hash_tag: bool = False

    def __str__(self) -> str:
        return self.name if self.kind == "bullmq" else f"{self.kind}:{self.name}"

    @property
    def keys(self) -> AnyKeys:
        match self.kind:
            case "bullmq":
                return QueueKeys(self.name, self.prefix, self.hash_tag)
            case "list":
                return ListKeys(self.name, self.prefix, self.env, self.hash_tag)
            case "stream":
                return StreamKeys(self.name, self.prefix, self.env, self.hash_tag)

    @classmethod
    def named(cls, text: str, *, prefix: str | None, env: str, cluster: bool) -> FoundQueue:
        """From how a queue is written: `NAME`, `list:NAME` or `stream:NAME`."""
        kind, colon, name = text.partition(":")
        if not colon:
            return cls("bullmq", text, prefix or BULLMQ_PREFIX, hash_tag=cluster)
        if kind not in ("list", "stream"):
            raise InvalidOption(
                "queue", f"{text!r} has no known kind", "write NAME, list:NAME or stream:NAME"
            )
        return cls(kind, name, prefix or ENVELOPE_PREFIX, env, cluster)  # type: ignore[arg-type]


async def find_queues(
    transport: AsyncTransport, *, prefix: str | None = None, env: str = "prod"
) -> list[FoundQueue]:
    """All queues under a prefix, by kind and name. `None` means the usual prefix of each kind."""
    found: set[FoundQueue] = set()
    async for node in nodes_of(transport):
        found |= await _bullmq_queues(node, prefix or BULLMQ_PREFIX)
        found |= await _envelope_queues(node, prefix or ENVELOPE_PREFIX, env)
    return sorted(found)


async def _bullmq_queues(transport: AsyncTransport, prefix: str) -> set[FoundQueue]:
    shape = re.compile(re.escape(prefix) + r":([^:]+):meta")
    names = {
        match[1]
        async for key in scan(transport, f"{literal(prefix)}:*:meta")
        if (match := shape.fullmatch(key))
    }
    return {FoundQueue("bullmq", *_untagged(name, prefix)) for name in names}


def _untagged(name: str, prefix: str) -> tuple[str, str, str, bool]:
    """`{emails}` is the queue emails with a hash tag, unless the prefix has the tag already."""
    tagged = name.startswith("{") and name.endswith("}") and len(name) > 2 and "{" not in prefix
    return (name[1:-1] if tagged else name), prefix, "", tagged


async def _envelope_queues(transport: AsyncTransport, prefix: str, env: str) -> set[FoundQueue]:
    shape = re.compile(re.escape(f"{prefix}:{env}") + r":(queue|stream):([^:]+)(:.*)?", re.DOTALL)
    found: set[FoundQueue] = set()
    for room in ("queue", "stream"):
        async for key in scan(transport, f"{literal(prefix)}:{literal(env)}:{room}:*"):
            if match := shape.fullmatch(key):
                name, _, _, tagged = _untagged(match[2], prefix)
                kind: QueueKind = "list" if match[1] == "queue" else "stream"
                found.add(FoundQueue(kind, name, prefix, env, tagged))
    return found


async def scan(transport: AsyncTransport, pattern: str) -> AsyncIterator[str]:
    """The keys of one node that match."""
    async for page in scan_pages(transport, pattern):
        for key in page:
            yield key


async def scan_pages(transport: AsyncTransport, pattern: str) -> AsyncIterator[list[str]]:
    """The same by calls: each looks at about `STEP` keys of the node, of which many or none may match."""
    cursor = "0"
    while True:
        cursor, page = await transport.run(_scan_step(cursor, pattern))
        yield page
        if cursor == "0":
            return


def _scan_step(cursor: str, pattern: str) -> Command[tuple[str, list[str]]]:
    return plain(_scanned, "SCAN", cursor, "MATCH", pattern, "COUNT", STEP)


def _scanned(reply: list[Any]) -> tuple[str, list[str]]:
    return reply[0].decode(), [one.decode(errors="replace") for one in reply[1]]


def literal(text: str) -> str:
    """Text in which nothing is a wildcard to SCAN."""
    return re.sub(r"([\\\[\]*?^])", r"\\\1", text)


async def nodes_of(transport: AsyncTransport) -> AsyncIterator[AsyncTransport]:
    """A store for each node that holds keys: a command without a key reaches one node only."""
    if not transport.is_cluster:
        yield transport
        return
    seen: set[tuple[str, int]] = set()
    for _, _, primary, *_ in await transport.run(plain(list, "CLUSTER", "SLOTS")):
        node = (primary[0].decode() or transport.address.nodes[0][0], int(primary[1]))
        if node not in seen:
            seen.add(node)
            single = replace(transport.address, kind="single", nodes=(node,))
            async with AsyncTransport(single, policy=transport.policy) as one:
                yield one


class Directory:
    """The queues to look after: those that were named, or all that a search found."""

    def __init__(
        self,
        transport: AsyncTransport,
        names: Iterable[str] = (),
        *,
        prefix: str | None = None,
        env: str = "prod",
        search_every: float = 60.0,
    ) -> None:
        self._transport = transport
        self._prefix = prefix
        self._env = env
        self._search_every = search_every
        self._searched: float | None = None
        self._searching: asyncio.Task[None] | None = None
        cluster = transport.is_cluster
        self._queues = sorted(FoundQueue.named(one, prefix=prefix, env=env, cluster=cluster) for one in names)
        self._fixed = bool(self._queues)

    async def queues(self) -> list[FoundQueue]:
        """Queues by kind and name. The first call searches; later ones answer at once, and search behind their back."""
        if not self._fixed:
            if self._searched is None:
                await self._search()
            elif self._due() and (self._searching is None or self._searching.done()):
                self._searching = asyncio.create_task(self._search_again(), name="toril-search")
        return self._queues

    def _due(self) -> bool:
        return self._searched is None or time.monotonic() - self._searched >= self._search_every

    async def _search(self) -> None:
        self._queues = await find_queues(self._transport, prefix=self._prefix, env=self._env)
        self._searched = time.monotonic()

    async def _search_again(self) -> None:
        with contextlib.suppress(TorilError):  # whoever asks next sees for himself that the server is away
            await self._search()

    async def close(self) -> None:
        """Ends a search that still runs; close it before its store."""
        searching, self._searching = self._searching, None
        if searching is not None:
            searching.cancel()
            await asyncio.wait([searching])
