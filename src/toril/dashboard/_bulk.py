"""Acts on many jobs, in bounded batches: retry or replay, remove, promote, clean, drain, obliterate.

Guarantee: a batch is one pipeline; between two batches an act can be cancelled and keeps its rate. A job that another
client changed meanwhile is skipped, not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from toril.commands import manage, pages
from toril.commands.command import Command
from toril.commands.once import Calls
from toril.commands.pages import FIRST_PAGE, JobFilter, PagePosition
from toril.dashboard._failures import each_failure
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import View
from toril.errors import InvalidOption, RedisError, ScriptRefused, TorilError
from toril.producer import Queue
from toril.protocol.error_pattern import error_pattern, fingerprint
from toril.protocol.state import JobState

# Jobs of one pipeline: about 10 ms of the server's time, in calls of below one.
BATCH: Final = 100
MOST_RATE: Final = 100_000.0
Progress = AsyncIterator[tuple[int, int]]  # done, skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAct:
    """What is done: `retry` (or replay), `remove`, `promote`, `clean`, `drain`, `obliterate` or `examine`."""

    name: str
    rate: float | None = None  # jobs per second
    grace: float = 0  # seconds: clean removes older jobs only
    delayed: bool = False  # drain removes delayed jobs, too

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate <= MOST_RATE:
            raise InvalidOption("rate", f"is {self.rate}", "give jobs per second, above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which jobs: some ids, a group of failures, or all of a state that match a filter."""

    state: str = "failed"
    ids: tuple[str, ...] = ()
    group: str = ""  # a fingerprint
    text: str = ""
    name: str = ""
    since_ms: int = 0
    until_ms: int = 0  # failures that ended later are left alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def filter(self) -> JobFilter:
        return JobFilter(text=self.text, name=self.name, since_ms=self.since_ms, until_ms=self.until_ms)


async def run_bulk(
    view: View, queue: ShownQueue, act: BulkAct, selection: Selection, cancelled: asyncio.Event
) -> Progress:
    """Does an act on the selected jobs; yields how many were done and skipped after each batch."""
    if act.name in ("clean", "drain", "obliterate"):
        async for step in _whole_queue(queue, act, selection, cancelled):
            yield step
        return
    at_once = BATCH if act.rate is None else max(1, min(BATCH, int(act.rate / 10)))
    async for ids in _batches(view, queue, selection, at_once):
        if cancelled.is_set():
            return
        done = await do_batch(queue, act.name, selection.state, ids)
        yield done, len(ids) - done
        if act.rate is not None:
            await asyncio.sleep(len(ids) / act.rate)


async def _batches(
    view: View, queue: ShownQueue, selection: Selection, at_once: int
) -> AsyncIterator[list[str]]:
    """Yields ids of selected jobs, at most `at_once` at a time."""
    async for ids in _selected(view, queue, selection):
        for start in range(0, len(ids), at_once):
            yield ids[start : start + at_once]


async def _selected(view: View, queue: ShownQueue, selection: Selection) -> AsyncIterator[list[str]]:
    if selection.ids:
        yield list(selection.ids)
    elif selection.group or not queue.is_bullmq:
        async for failures, _ in each_failure(view, queue):
            yield [
                one.id
                for one in failures
                if (not selection.until_ms or one.at_ms <= selection.until_ms)
                and (not selection.group or _group_of(one.error) == selection.group)
                and (not selection.text or selection.text.casefold() in f"{one.name} {one.error}".casefold())
                and (not selection.name or selection.name == one.name)
                and one.at_ms >= selection.since_ms
            ]
    else:
        async for ids in _matching(queue, selection):
            yield ids


def _group_of(error: str) -> str:
    return fingerprint(error_pattern(error) or "(no reason)")


async def _matching(queue: ShownQueue, selection: Selection) -> AsyncIterator[list[str]]:
    """Yields jobs of a state, oldest first, at most as many as there are now."""
    state = JobState.parse(selection.state)
    position: PagePosition | None = FIRST_PAGE
    left: int | None = None
    while position is not None and (left is None or left > 0):
        window = await queue.source.run(
            pages.job_search(queue.keys, state, selection.filter, after=position, newest_first=False)
        )
        left = (window.total if left is None else left) - window.examined
        if window.found:
            yield window.found
        position = window.next
        if position is not None and window.found:
            # What was taken out of a list moved the others to the front.
            place = max(0, position.place - len(window.found))
            position = PagePosition(place=place, last_id=position.last_id, last_score=position.last_score)


async def do_batch(queue: ShownQueue, act: str, state: str, ids: list[str]) -> int:
    """Does an act on some jobs; returns on how many.

    Jobs that are not there any more are skipped, and those whose keys hold something else than a job.
    """
    if not queue.is_bullmq:
        return await _dead_letters(queue, act, ids)
    calls = Calls(queue.keys, at_once=len(ids))
    replies = await queue.source.transport.run_many([_command(queue, act, state, one, calls) for one in ids])
    for reply in replies:
        is_skipped = isinstance(reply, RedisError) and reply.concerns_data
        if isinstance(reply, TorilError) and not isinstance(reply, ScriptRefused) and not is_skipped:
            raise reply
    return sum(not isinstance(reply, TorilError) for reply in replies)


def _command(queue: ShownQueue, act: str, state: str, job_id: str, calls: Calls) -> Command[Any]:
    match act:
        case "retry":
            kind: Any = "completed" if state == "completed" else "failed"
            return manage.reprocess(queue.keys, job_id, state=kind, lifo=False, calls=calls)
        case "remove":
            return manage.remove(queue.keys, job_id)
        case "promote":
            return manage.promote(queue.keys, job_id)
    raise InvalidOption("act", f"{act!r} is not an act on many jobs", "choose retry, remove or promote")


async def _dead_letters(queue: ShownQueue, act: str, ids: list[str]) -> int:
    opened = queue.source.open(queue.found)
    if isinstance(opened, Queue) or act not in ("retry", "remove"):
        raise InvalidOption("act", f"{act!r} is not an act on dead letters", "choose retry or remove")
    async with opened:
        step = opened.replay if act == "retry" else opened.purge
        return sum([await step(one) for one in ids])


async def _whole_queue(
    queue: ShownQueue, act: BulkAct, selection: Selection, cancelled: asyncio.Event
) -> Progress:
    async with queue.source.open(queue.found) as opened:
        if act.name == "obliterate":
            await (opened.obliterate(force=True) if isinstance(opened, Queue) else opened.obliterate())
            yield 1, 0
        elif act.name == "drain":
            yield await opened.drain(delayed=act.delayed), 0
        elif not isinstance(opened, Queue):
            yield await opened.purge(), 0
        else:
            while not cancelled.is_set():
                removed = await opened.clean(grace=act.grace, limit=500, state=selection.state)
                yield len(removed), 0
                if len(removed) < 500:
                    return
