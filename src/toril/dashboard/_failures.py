"""Groups of failed jobs and dead letters by the pattern of their error.

Guarantee: the newest failures of each queue are examined in bounded calls, in the background, and kept for some
seconds. A page shows how many of how many were examined; if these are all, the groups are exact. An operation examines
all failures of a queue, and what it found is kept for longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Final

from toril.commands import envelope_pages, pages
from toril.commands.pages import FIRST_PAGE, PagePosition
from toril.dashboard._rows import bullmq_row, envelope_row
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import View
from toril.errors import TorilError
from toril.protocol.error_pattern import error_pattern, fingerprint
from toril.protocol.state import JobState

MOST_EXAMINED: Final = 10_000
# Failures of one call: about 1 ms of the server's time.
AT_ONCE: Final = 200
KEPT_SECONDS: Final = 10.0
# What an operation examined.
KEPT_EXAMINATION: Final = 600.0
# More patterns, such as errors that all differ, are counted and not kept.
MOST_GROUPS: Final = 2_000
MOST_NAMES: Final = 50
MOST_STORED: Final = 200
# A page waits so long for an examination before it shows what is known.
MAX_WAIT_SECONDS: Final = 0.4
SAMPLES: Final = 5
TREND_HOURS: Final = 24
_FIELDS: Final = ("name", "failedReason", "finishedOn", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed job or dead letter."""

    id: str
    name: str
    error: str
    at_ms: float


@dataclass(slots=True, kw_only=True)
class FailureGroup:
    """Failures of one queue with the same pattern."""

    queue: ShownQueue
    fingerprint: str
    pattern: str
    count: int = 0
    first_ms: float = 0
    last_ms: float = 0
    names: dict[str, int] = field(default_factory=dict)
    samples: list[Failure] = field(default_factory=list)
    hours: list[int] = field(default_factory=lambda: [0] * TREND_HOURS)  # the last one is now

    def add(self, one: Failure, now_ms: float) -> None:
        self.count += 1
        self.first_ms = min(self.first_ms or one.at_ms, one.at_ms)
        self.last_ms = max(self.last_ms, one.at_ms)
        if one.name in self.names or len(self.names) < MOST_NAMES:
            self.names[one.name] = self.names.get(one.name, 0) + 1
        if len(self.samples) < SAMPLES:
            self.samples.append(one)
        hour = TREND_HOURS - 1 - int((now_ms - one.at_ms) // 3_600_000)
        if 0 <= hour < TREND_HOURS:
            self.hours[hour] += 1


@dataclass(slots=True, kw_only=True)
class Examination:
    """The groups of one queue, and how far its failures were examined."""

    groups: dict[str, FailureGroup] = field(default_factory=dict)
    examined: int = 0
    ungrouped: int = 0  # failures of patterns beyond `MOST_GROUPS`
    total: int = 0
    at: float = 0.0
    is_done: bool = False
    error: str = ""
    kept: float = KEPT_SECONDS

    def add(self, queue: ShownQueue, failures: Iterable[Failure]) -> None:
        """Sorts failures into groups."""
        now_ms = time.time() * 1000
        for one in failures:
            self.examined += 1
            pattern = error_pattern(one.error) or "(no reason)"
            key = fingerprint(pattern)
            group = self.groups.get(key)
            if group is None:
                if len(self.groups) >= MOST_GROUPS:
                    self.ungrouped += 1
                    continue
                group = self.groups[key] = FailureGroup(queue=queue, fingerprint=key, pattern=pattern)
            group.add(one, now_ms)

    def largest(self, most: int = MOST_STORED) -> list[FailureGroup]:
        return sorted(self.groups.values(), key=lambda one: (-one.count, one.fingerprint))[:most]


class FailureIndex:
    """The groups of all queues, examined when a page asks for them."""

    def __init__(self) -> None:
        self._known: dict[str, Examination] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def groups(self, view: View, queues: Iterable[ShownQueue]) -> dict[str, Examination]:
        """Returns what is known of each queue, after a short wait for examinations that have begun."""
        wanted = list(queues)
        for queue in wanted:
            self._begin(view, queue)
        running = [self._running[one.id] for one in wanted if one.id in self._running]
        if running:
            await asyncio.wait(running, timeout=MAX_WAIT_SECONDS)
        return {one.id: self._known.get(one.id, Examination()) for one in wanted}

    def _begin(self, view: View, queue: ShownQueue) -> None:
        known = self._known.get(queue.id)
        dead = queue.figures.dead if queue.figures is not None else 0
        if queue.id in self._running or (known is not None and time.monotonic() - known.at < known.kept):
            return
        if known is not None and known.is_done and not dead and not known.total:
            return
        task = asyncio.create_task(self._examine(view, queue), name="toril-failures")
        self._running[queue.id] = task
        task.add_done_callback(lambda _: self._running.pop(queue.id, None))

    async def _examine(self, view: View, queue: ShownQueue) -> None:
        made = Examination(at=time.monotonic())
        is_first = queue.id not in self._known
        if is_first:
            self._known[queue.id] = made
        try:
            async for failures, total in each_failure(view, queue):
                made.total = total
                made.add(queue, failures)
                if made.examined >= MOST_EXAMINED:
                    break
            made.is_done = True
        except TorilError as error:
            made.error = str(error)
        made.at = time.monotonic()
        self._known[queue.id] = made

    def keep(self, queue: ShownQueue, made: Examination) -> None:
        """Takes the examination that an operation made."""
        made.at, made.is_done, made.kept = time.monotonic(), True, KEPT_EXAMINATION
        self._known[queue.id] = made

    def forget(self, queue: ShownQueue) -> None:
        """Has the failures of a queue examined again: some were retried or removed."""
        self._known.pop(queue.id, None)

    async def close(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def examine(
    view: View, queue: ShownQueue, made: Examination, cancelled: asyncio.Event
) -> AsyncIterator[tuple[int, int]]:
    """Examines all failures of a queue; yields how many were examined and left out with each page."""
    async for failures, total in each_failure(view, queue):
        if cancelled.is_set():
            return
        made.total = max(made.total, total)
        made.add(queue, failures)
        yield len(failures), 0


async def each_failure(view: View, queue: ShownQueue) -> AsyncIterator[tuple[list[Failure], int]]:
    """Yields failures of a queue, newest first, in pages, each with the number of all failures."""
    source = _bullmq_failures if queue.is_bullmq else _dead_letters
    async for page in source(view, queue):
        yield page


async def _bullmq_failures(view: View, queue: ShownQueue) -> AsyncIterator[tuple[list[Failure], int]]:
    position: PagePosition | None = FIRST_PAGE
    while position is not None:
        page = await queue.source.run(
            pages.job_page(queue.keys, JobState.FAILED, after=position, limit=AT_ONCE, fields=_FIELDS)
        )
        rows = [(bullmq_row(view, queue, JobState.FAILED, row), row.score) for row in page.rows]
        yield (
            [
                Failure(id=row.id, name=row.name, error=row.error, at_ms=score or row.ended_ms or 0)
                for row, score in rows
            ],
            page.total,
        )
        position = page.next


async def _dead_letters(view: View, queue: ShownQueue) -> AsyncIterator[tuple[list[Failure], int]]:
    after: str | None = ""
    while after is not None:
        page = await queue.source.run(
            envelope_pages.envelope_page(queue.keys, "dlq", after=after, limit=AT_ONCE)
        )
        rows = [envelope_row(view, queue, "failed", row) for row in page.rows]
        yield (
            [
                Failure(
                    id=row.id,
                    name=row.name,
                    error=row.error or ", ".join(row.notes),
                    at_ms=row.ended_ms or float(row.id.partition("-")[0]),
                )
                for row in rows
            ],
            page.total,
        )
        after = page.next
