"""The groups of a BullMQ queue: how many jobs of each wait, are held back and run, and its limits."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from toril.commands import groups as commands
from toril.commands.groups import GroupPage, Place
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import span
from toril.dashboard._view import Page, PageNotFound, View
from toril.protocol.group_limits import GroupLimits

# A page whose jobs are counted for longer is shown with what was counted.
MOST_SECONDS: Final = 0.4
MOST_ROWS: Final = 200
# A page that counted more jobs is not live.
MOST_LIVE: Final = 3_000
_PLACES: Final[tuple[Place, ...]] = ("prioritized", "delayed", "active")


@dataclass(slots=True)
class _Counts:
    """The jobs of each group, by what they do."""

    by_group: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, place: Place, page: GroupPage) -> None:
        for name, (jobs, held) in page.jobs.items():
            counted = self.by_group.setdefault(name, Counter())
            if place == "delayed":
                counted.update(held=held, delayed=jobs - held)
            else:
                counted["active" if place == "active" else "waiting"] += jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group of a queue."""

    name: str
    counts: Counter[str]
    weight: float | None
    limits: str
    is_paused: bool


async def groups(view: View) -> Page:
    known = await view.queue()
    if not known.is_bullmq:
        raise PageNotFound("list and stream queues have no groups")
    keys = known.keys
    reading = await known.source.read(
        known,
        commands.get_weights(keys),
        commands.get_limits(keys),
        commands.get_paused(keys),
        *(commands.count_page(keys, place, "0") for place in _PLACES),
    )
    weights, limits, paused, *first = reading.values
    counts = _Counts()
    is_done = await _count(reading.queue, counts, dict(zip(_PLACES, first, strict=True)))
    names = counts.by_group.keys() | weights.keys() | paused | {one for one in limits if one is not None}
    rows = [_row(one, counts, weights, limits, paused) for one in names]
    rows.sort(key=lambda row: (-row.counts["waiting"] - row.counts["held"], -row.counts["active"], row.name))
    states = reading.queue.figures.states if reading.queue.figures is not None else {}
    total = sum(states.get(place, 0) for place in _PLACES)
    return Page(
        template="groups",
        title=f"Groups of {known.id}",
        place="overview",
        values={
            "queue": reading.queue,
            "rows": rows[:MOST_ROWS],
            "hidden": max(0, len(rows) - MOST_ROWS),
            "general": words_of(limits[None]) if None in limits else "",
            "is_done": is_done,
        },
        is_live=is_done and total <= MOST_LIVE,
    )


async def _count(queue: ShownQueue, counts: _Counts, first: dict[Place, GroupPage]) -> bool:
    """Counts the jobs of each place, page after page, for a bounded time; returns whether all were counted."""
    ends = time.monotonic() + MOST_SECONDS
    for place, page in first.items():
        counts.add(place, page)
    for place, page in first.items():
        cursor = page.cursor
        while cursor != "0":
            if time.monotonic() > ends:
                return False
            following = await queue.source.run(commands.count_page(queue.keys, place, cursor))
            counts.add(place, following)
            cursor = following.cursor
    return True


def _row(
    name: str,
    counts: _Counts,
    weights: dict[str, float],
    limits: dict[str | None, GroupLimits],
    paused: set[str],
) -> GroupRow:
    given: Any = limits.get(name)
    return GroupRow(
        name=name,
        counts=counts.by_group.get(name, Counter()),
        weight=weights.get(name),
        limits=words_of(given) if given is not None else "",
        is_paused=name in paused,
    )


def words_of(limits: GroupLimits) -> str:
    """Returns limits as words."""
    words = []
    if limits.concurrency is not None:
        words.append(f"{limits.concurrency:,} at once")
    if limits.rate_limit is not None:
        words.append(f"{limits.rate_limit.count:,} in {span(limits.rate_limit.period)}")
    if limits.max_size is not None:
        words.append(f"{limits.max_size:,} waiting at most")
    if limits.keep_order:
        words.append("in order")
    return ", ".join(words)
