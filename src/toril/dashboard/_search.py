"""The search in the jobs of one state.

Guarantee: a request examines jobs for a bounded time and then says how far it came; its link continues there. So a
search that nobody waits for any more ends within a second. With `redact`, a job is found by what is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from toril.commands import pages, read
from toril.commands.pages import FIRST_PAGE, SEARCH_FIELDS, JobFilter, PagePosition, PageRow
from toril.dashboard._rows import JobRow, bullmq_row, redacted_text
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import View
from toril.protocol.state import JobState

# A page that is searched for longer is shown with what was found, and continues.
MOST_SECONDS: Final = 0.8
# A longer value is not read at all.
MOST_VALUE_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Search:
    """What a search found."""

    rows: list[JobRow] = field(default_factory=list)
    examined: int = 0
    total: int = 0
    next: PagePosition | None = None


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
    found = Search()
    ends = time.monotonic() + seconds
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
        ids = [*window.found, *[one for one in window.large if await _has(queue, one, wanted)]]
        found.rows += await _rows(view, queue, state, ids, wanted)
        position = window.next
        if time.monotonic() > ends:
            break
    found.next = position
    return found


async def _has(queue: ShownQueue, job_id: str, wanted: JobFilter) -> bool:
    """Whether a job with a long value has the text. The values are read one by one, outside of a script."""
    for name in SEARCH_FIELDS:
        (value,) = await queue.source.run(read.get_fields(queue.keys, job_id, [name]))
        if value is not None and len(value) <= MOST_VALUE_BYTES and wanted.needle in value.lower():
            return True
    return False


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
