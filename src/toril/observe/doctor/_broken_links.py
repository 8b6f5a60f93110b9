"""Ties between jobs that do not hold: parents of children that are gone, jobs in two places, schedulers without a run.

Guarantee: as elsewhere in the doctor, every suspect is looked at a second time before it is named; at most `MOST` jobs
of each kind are looked at.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from toril.commands import read
from toril.commands.command import plain
from toril.errors import TorilError
from toril.observe.doctor._finding import Finding, problem
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

MOST: Final = 2_000
CHILDREN: Final = 20  # of one parent: if they are gone, they are gone together
SECOND_LOOK: Final = 0.3  # seconds: longer than any script runs

Look = Callable[[Sequence[str] | None], Awaitable[list[str]]]


async def examine_links(transport: AsyncTransport, keys: QueueKeys, name: str) -> list[Finding]:
    """Findings about jobs that depend on something that is not there, or that are there twice."""
    ties = _Ties(transport, keys)
    found = [
        (await _twice(ties.childless), _CHILDLESS),
        (await _twice(ties.doubled), _DOUBLED),
        (await _twice(ties.runless), _RUNLESS),
    ]
    return [
        problem("stuck", f"{len(ids)} {text}: {_some(ids)}", remedy, name)
        for ids, (text, remedy) in found
        if ids
    ]


_CHILDLESS = (
    "jobs wait for children that do not exist any more",
    "add what is needed again and `toril remove` them; look for keys that were deleted by hand, or evicted",
)
_DOUBLED = (
    "jobs are in two places at once, and may run twice",
    "`toril remove` them and add them again; look for clients that move jobs without BullMQ's scripts",
)
_RUNLESS = (
    "schedulers have no next run, so nothing will come of them",
    "`toril doctor --repair` makes the next run, or puts it back to its place",
)


async def schedulers_without_run(transport: AsyncTransport, keys: QueueKeys) -> list[str]:
    """Schedulers whose next run is in no list."""
    return await _twice(_Ties(transport, keys).runless)


async def _twice(look: Look) -> list[str]:
    """What a first look suspects and a second one confirms."""
    suspects = await look(None)
    if not suspects:
        return []
    await asyncio.sleep(SECOND_LOOK)
    return await look(suspects)


class _Ties:
    """Looks at one queue."""

    def __init__(self, transport: AsyncTransport, keys: QueueKeys) -> None:
        self._transport = transport
        self._keys = keys

    async def childless(self, suspects: Sequence[str] | None) -> list[str]:
        """Parents whose open dependencies are none, or name a job that is not there."""
        keys = self._keys
        parents = suspects or await self._members(keys.waiting_children)
        ties = await self._all(
            [plain(_texts, "SRANDMEMBER", keys.dependencies(one), CHILDREN) for one in parents]
        )
        places = await self._all([plain(_there, "ZSCORE", keys.waiting_children, one) for one in parents])
        children = [child for tie in ties for child in tie or ()]
        exist = dict(
            zip(children, await self._all([plain(bool, "EXISTS", one) for one in children]), strict=True)
        )
        return [
            parent
            for parent, tie, waits in zip(parents, ties, places, strict=True)
            if waits and tie is not None and (not tie or not all(exist[child] for child in tie))
        ]

    async def doubled(self, suspects: Sequence[str] | None) -> list[str]:
        """Jobs that stand in more than one list, or twice in one; read in one go, so that few can move meanwhile."""
        keys = self._keys
        lists = (keys.wait, keys.active, keys.paused)
        sets = (keys.prioritized, keys.delayed, keys.completed, keys.failed, keys.waiting_children)
        commands = [plain(_texts, "LRANGE", one, -MOST, -1) for one in lists]
        commands += [plain(_texts, "ZRANGE", one, 0, MOST - 1) for one in sets]
        seen = Counter(one for page in await self._all(commands) for one in page or ())
        return [one for one, times in seen.items() if times > 1 and (suspects is None or one in suspects)]

    async def runless(self, suspects: Sequence[str] | None) -> list[str]:
        """Schedulers whose next run is in no list."""
        keys = self._keys
        rows = await self._transport.run(plain(_pairs, "ZRANGE", keys.repeat, 0, MOST - 1, "WITHSCORES"))
        rows = [(one, at) for one, at in rows if suspects is None or one in suspects]
        known = await self._all([plain(bool, "EXISTS", f"{keys.repeat}:{one}") for one, _ in rows])
        states = await self._all([read.get_state(keys, f"repeat:{one}:{at}") for one, at in rows])
        return [
            one
            for (one, _), is_ours, state in zip(rows, known, states, strict=True)
            if is_ours and state == "unknown"
        ]

    async def _members(self, key: str) -> list[str]:
        return await self._transport.run(plain(_texts, "ZRANGE", key, 0, MOST - 1))

    async def _all(self, commands: Sequence[Any]) -> list[Any]:
        """Replies in order; None for one that the server refused."""
        replies: list[Any] = []
        for start in range(0, len(commands), 500):
            part = await self._transport.run_many(commands[start : start + 500])
            replies += (None if isinstance(reply, TorilError) else reply for reply in part)
        return replies


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _there(reply: object) -> bool:
    return reply is not None


def _pairs(reply: list[bytes]) -> list[tuple[str, int]]:
    return [
        (one.decode(errors="replace"), int(float(at)))
        for one, at in zip(reply[::2], reply[1::2], strict=True)
    ]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + ("" if len(ids) <= 3 else f" and {len(ids) - 3} more")
