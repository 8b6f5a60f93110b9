"""Broken links between jobs: parents of deleted children, jobs in two places, schedulers without a next run.

Guarantee: every finding is confirmed by a second examination before it is reported; at most `most` jobs of each state,
and `CHILDREN` children of a parent, are examined.
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

CHILDREN: Final = 20  # examined of one parent
CONFIRM_AFTER: Final = 0.3  # seconds: longer than a script runs

Find = Callable[[Sequence[str] | None], Awaitable[list[str]]]


async def examine_links(transport: AsyncTransport, keys: QueueKeys, name: str, most: int) -> list[Finding]:
    """Returns findings about jobs that depend on something that does not exist, or that exist twice."""
    links = _QueueLinks(transport, keys, most)
    found = [
        (await _confirmed(links.parents_without_children), _WITHOUT_CHILDREN),
        (await _confirmed(links.jobs_in_two_places), _IN_TWO_PLACES),
        (await _confirmed(links.schedulers_without_run), _WITHOUT_RUN),
    ]
    return [
        problem("stuck", f"{len(ids)} {text}: {_some(ids)}", remedy, name)
        for ids, (text, remedy) in found
        if ids
    ]


_WITHOUT_CHILDREN = (
    "jobs wait for children that do not exist any more",
    "`toril remove` them, and add again what is needed; check whether keys were deleted by hand, or evicted",
)
_IN_TWO_PLACES = (
    "jobs are in two places at once, and may run twice",
    "`toril remove` them and add them again; check for clients that move jobs without BullMQ's scripts",
)
_WITHOUT_RUN = (
    "schedulers have no next run, so they add no more jobs",
    "`toril doctor --repair` adds the next run, or puts it back into its list",
)


async def schedulers_without_run(transport: AsyncTransport, keys: QueueKeys, most: int) -> list[str]:
    """Returns schedulers whose next run is in no list."""
    return await _confirmed(_QueueLinks(transport, keys, most).schedulers_without_run)


async def _confirmed(find: Find) -> list[str]:
    """Returns what two examinations find."""
    suspects = await find(None)
    if not suspects:
        return []
    await asyncio.sleep(CONFIRM_AFTER)
    return await find(suspects)


class _QueueLinks:
    """Finds broken links in one queue."""

    def __init__(self, transport: AsyncTransport, keys: QueueKeys, most: int) -> None:
        self._transport = transport
        self._most = most
        self._keys = keys

    async def parents_without_children(self, suspects: Sequence[str] | None) -> list[str]:
        """Returns waiting parents without open dependencies, or with one on a job that does not exist."""
        keys = self._keys
        parents = suspects or await self._members(keys.waiting_children)
        links = await self._all(
            [plain(_texts, "SRANDMEMBER", keys.dependencies(one), CHILDREN) for one in parents]
        )
        places = await self._all([plain(_there, "ZSCORE", keys.waiting_children, one) for one in parents])
        children = [child for open_children in links for child in open_children or ()]
        exist = dict(
            zip(children, await self._all([plain(bool, "EXISTS", one) for one in children]), strict=True)
        )
        return [
            parent
            for parent, open_children, waits in zip(parents, links, places, strict=True)
            if waits
            and open_children is not None
            and (not open_children or not all(exist[child] for child in open_children))
        ]

    async def jobs_in_two_places(self, suspects: Sequence[str] | None) -> list[str]:
        """Returns jobs that are in more than one list, or twice in one; one read, so that few move meanwhile."""
        keys = self._keys
        lists = (keys.wait, keys.active, keys.paused)
        sets = (keys.prioritized, keys.delayed, keys.completed, keys.failed, keys.waiting_children)
        commands = [plain(_texts, "LRANGE", one, -self._most, -1) for one in lists]
        commands += [plain(_texts, "ZRANGE", one, 0, self._most - 1) for one in sets]
        seen = Counter(one for page in await self._all(commands) for one in page or ())
        return [one for one, times in seen.items() if times > 1 and (suspects is None or one in suspects)]

    async def schedulers_without_run(self, suspects: Sequence[str] | None) -> list[str]:
        """Returns schedulers whose next run is in no list."""
        keys = self._keys
        rows = await self._transport.run(
            plain(_pairs, "ZRANGE", keys.repeat, 0, self._most - 1, "WITHSCORES")
        )
        rows = [(one, at) for one, at in rows if suspects is None or one in suspects]
        known = await self._all([plain(bool, "EXISTS", f"{keys.repeat}:{one}") for one, _ in rows])
        states = await self._all([read.get_state(keys, f"repeat:{one}:{at}") for one, at in rows])
        return [
            one
            for (one, _), is_ours, state in zip(rows, known, states, strict=True)
            if is_ours and state == "unknown"
        ]

    async def _members(self, key: str) -> list[str]:
        return await self._transport.run(plain(_texts, "ZRANGE", key, 0, self._most - 1))

    async def _all(self, commands: Sequence[Any]) -> list[Any]:
        """Returns the replies in order; None for an error."""
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
