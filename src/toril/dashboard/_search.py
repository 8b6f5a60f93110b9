"""The search in the jobs of one state.

Guarantee: a request examines jobs for a bounded time and then says how far it came; its link continues there. A search
whose request was closed ends with the call that runs. With `redact`, a job is found by what is shown.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from toril.commands import envelope_pages, pages, read
from toril.commands.envelope_pages import EnvelopePlace
from toril.commands.pages import FIRST_PAGE, SEARCH_FIELDS, JobFilter, PagePosition, PageRow
from toril.dashboard._rows import JobRow, bullmq_row, envelope_row, redacted_text
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import View
from toril.protocol.state import JobState

# A page that is searched for longer is shown with what was found, and continues.
MOST_SECONDS: Final = 0.8
ENVELOPE_PLACES: Final[dict[str, EnvelopePlace]] = {
    "waiting": "jobs",
    "delayed": "scheduled",
    "failed": "dlq",
}
# A longer value is not read at all.
MOST_VALUE_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Search:
    """Rows of a state: those of a page, or what a search found."""

    rows: list[JobRow] = field(default_factory=list)
    examined: int = 0  # jobs, those of the pages before included
    total: int = 0
    first: int = 0  # the place of the first row of a page
    next: str = ""  # where the next page begins; empty: nowhere


class _Clock:
    """Ends a search when its time is over, or when nobody waits for its page any more."""

    def __init__(self, view: View, seconds: float) -> None:
        self._view = view
        self._ends = time.monotonic() + seconds

    async def is_over(self) -> bool:
        return time.monotonic() > self._ends or await self._view.is_left()


async def search_jobs(
    view: View,
    queue: ShownQueue,
    state: JobState,
    wanted: JobFilter,
    *,
    after: PagePosition = FIRST_PAGE,
    newest_first: bool = True,
    most: int = 50,
    seconds: float = MOST_SECONDS,
) -> Search:
    """Returns matching jobs, until there are `most` of them, the state ends, or the time is over."""
    found, clock = Search(examined=after.place), _Clock(view, seconds)
    position: PagePosition | None = after
    while position is not None and len(found.rows) < most:
        window = await queue.source.run(
            pages.job_search(
                queue.keys,
                state,
                wanted,
                after=position,
                newest_first=newest_first,
                max_found=most - len(found.rows),
            )
        )
        found.examined += window.examined
        found.total = window.total
        ids = [*window.found, *[one for one in window.large if await _has_long_match(queue, one, wanted)]]
        found.rows += await _rows(view, queue, state, ids, wanted)
        position = window.next
        if await clock.is_over():
            break
    found.next = str(position or "")
    return found


async def search_envelopes(
    view: View,
    queue: ShownQueue,
    state: str,
    wanted: JobFilter,
    *,
    after: str = "",
    newest_first: bool = True,
    most: int = 50,
    seconds: float = MOST_SECONDS,
) -> Search:
    """The same for the envelopes of a list or stream queue."""
    # The position in a stream is an id, which tells no number.
    found, clock = Search(examined=int(after) if after.isdecimal() else 0), _Clock(view, seconds)
    position: str | None = after
    while position is not None and len(found.rows) < most:
        window = await queue.source.run(
            envelope_pages.envelope_search(
                queue.keys,
                ENVELOPE_PLACES[state],
                wanted.needle,
                after=position,
                newest_first=newest_first,
                max_found=most - len(found.rows),
            )
        )
        found.examined += window.examined
        found.total = window.total
        rows = (envelope_row(view, queue, state, row) for row in window.rows)
        found.rows += (row for row in rows if _is_meant(view, row, wanted))
        position = window.next
        if await clock.is_over():
            break
    found.next = position or ""
    return found


def _is_meant(view: View, row: JobRow, wanted: JobFilter) -> bool:
    """Whether an envelope has the name and the time; with `redact`, whether the text is in what is shown."""
    if wanted.name and row.name != wanted.name:
        return False
    if wanted.since_ms and (row.ended_ms or row.added_ms or 0) < wanted.since_ms:
        return False
    if view.options.redact is None:
        return True
    texts = (row.job_id, row.name, row.data, row.error)
    return any(wanted.needle in one.encode(errors="replace").lower() for one in texts)


async def _has_long_match(queue: ShownQueue, job_id: str, wanted: JobFilter) -> bool:
    """Whether a job with a long value has the text. The values are read one by one, outside of a script."""
    lengths = await queue.source.run_all(
        *(pages.field_length(queue.keys, job_id, name) for name in SEARCH_FIELDS)
    )
    for name, length in zip(SEARCH_FIELDS, lengths, strict=True):
        if not 0 < length <= MOST_VALUE_BYTES:
            continue
        (value,) = await queue.source.run(read.get_fields(queue.keys, job_id, [name]))
        if value is not None and await asyncio.to_thread(_contains, value, wanted.needle):
            return True
    return False


def _contains(value: bytes, needle: bytes) -> bool:
    """Compares piece by piece: a copy of a huge value in lower case would double it."""
    step = 1024 * 1024
    return any(needle in value[at : at + step + len(needle)].lower() for at in range(0, len(value), step))


async def _rows(
    view: View, queue: ShownQueue, state: JobState, ids: list[str], wanted: JobFilter
) -> list[JobRow]:
    if not ids:
        return []
    commands = [
        pages.job_fields(
            queue.keys,
            job_id,
            pages.ROW_FIELDS,
            longest=pages.ROW_VALUE_BYTES,
            max_bytes=pages.PAGE_BYTES // len(ids),
        )
        for job_id in ids
    ]
    replies = await queue.source.run_all(*commands)
    rows = []
    for job_id, fields in zip(ids, replies, strict=True):
        if view.options.redact is not None and not await _is_shown(view, queue, job_id, wanted):
            continue
        rows.append(bullmq_row(view, queue, state, PageRow(id=job_id, score=None, fields=fields)))
    return rows


async def _is_shown(view: View, queue: ShownQueue, job_id: str, wanted: JobFilter) -> bool:
    """Whether the text is in what is shown of a job after `redact`, so that nobody finds what is hidden."""
    if wanted.needle in job_id.encode(errors="replace").lower():
        return True
    values = await queue.source.run(read.get_fields(queue.keys, job_id, SEARCH_FIELDS))
    for name, value in zip(("name", "data", "error"), values, strict=True):
        if value is None:
            continue
        text = value.decode(errors="replace") if name == "name" else redacted_text(view, queue, name, value)
        if wanted.needle in text.encode(errors="replace").lower():
            return True
    return False
