"""One queue: its states as tabs, a page of jobs, filters and the search."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from toril.commands import pages, streams
from toril.commands.overview import EnvelopeOverview
from toril.commands.pages import JobFilter, PagePosition
from toril.dashboard._rows import JobRow, bullmq_row, envelope_row
from toril.dashboard._search import search_jobs
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import Page, View
from toril.dashboard._words import ENVELOPE_STATES, STATES
from toril.errors import InvalidOption
from toril.protocol.state import JobState

PAGE_SIZES: Final = (25, 50, 100, 200)
# The filters by time, as they are chosen: hours.
SINCE: Final = {"15m": 0.25, "1h": 1.0, "24h": 24.0, "7d": 168.0}


async def queue(view: View) -> Page:
    shown = await view.queue()
    picture = await shown.source.overview()
    shown = next((one for one in picture.queues if one.found == shown.found), shown)
    state = _state(view, shown)
    wanted = job_filter(view, picture.now_ms)
    values = await (_jobs if shown.is_bullmq else _envelopes)(view, shown, state, wanted)
    return Page(
        template="queue",
        title=shown.id,
        place="overview",
        values={
            "queue": shown,
            "state": state,
            "states": STATES if shown.is_bullmq else ENVELOPE_STATES,
            "counts": counts_of(shown),
            "order": view.query("order", "newest"),
            "after": view.query("after"),
            "q": view.query("q"),
            "name": view.query("name"),
            "since": view.query("since"),
            "sinces": list(SINCE),
            "limit": view.count("limit", 50, PAGE_SIZES[-1]),
            "now_ms": picture.now_ms,
            "is_filtered": bool(wanted),
            "consumers": await _consumers(shown),
            **values,
        },
    )


def _state(view: View, shown: ShownQueue) -> str:
    given = view.query("state")
    states = STATES if shown.is_bullmq else ENVELOPE_STATES
    if not given:
        counts = counts_of(shown)
        order = ("active", "waiting", "failed", "delayed", "completed", "waiting-children", "prioritized")
        return next((one for one in order if one in states and counts.get(one)), "waiting")
    if given not in states:
        raise InvalidOption(
            "state", f"there is no state {given[:50]!r}", f"choose one of {', '.join(states)}"
        )
    return given


def counts_of(shown: ShownQueue) -> dict[str, int]:
    """Returns the number of jobs by state; the jobs of a paused queue wait."""
    if shown.figures is None:
        return {}
    counts = dict(shown.figures.states)
    counts["waiting"] = counts.get("waiting", 0) + counts.pop("paused", 0)
    return counts


def job_filter(view: View, now_ms: int) -> JobFilter:
    """Returns the filter of the query: `q`, `name` and `since` (a span such as 1h, or an ISO time)."""
    since = view.query("since")
    since_ms = 0
    if since in SINCE:
        since_ms = now_ms - round(timedelta(hours=SINCE[since]).total_seconds() * 1000)
    elif since:
        try:
            since_ms = round(datetime.fromisoformat(since).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise InvalidOption(
                "since", f"{since[:50]!r} is no time", "write 1h, or 2026-01-31T12:00"
            ) from None
    return JobFilter(text=view.query("q")[:500], name=view.query("name")[:500], since_ms=max(0, since_ms))


async def _jobs(view: View, shown: ShownQueue, state: str, wanted: JobFilter) -> dict[str, Any]:
    after = PagePosition.parse(view.query("after"))
    newest = view.query("order", "newest") != "oldest"
    limit = view.count("limit", 50, PAGE_SIZES[-1])
    meant = _list_of(shown, state)
    if wanted:
        search = await search_jobs(view, shown, meant, wanted, after=after, newest_first=newest, most=limit)
        rows = search.rows
        facts: dict[str, Any] = {"examined": search.examined, "total": search.total}
        next_page = search.next
    else:
        page = await shown.source.run(
            pages.job_page(shown.keys, meant, after=after, newest_first=newest, limit=limit)
        )
        rows = [bullmq_row(view, shown, meant, row) for row in page.rows]
        facts = {"examined": None, "total": page.total, "first": page.first}
        next_page = page.next
    return {"rows": rows, "next": "" if next_page is None else str(next_page), "facts": facts}


def _list_of(shown: ShownQueue, state: str) -> JobState:
    """Returns the list that is meant: Node before version 6 keeps the waiting jobs of a paused queue apart."""
    meant = JobState.parse(state)
    if meant is JobState.WAITING and shown.figures is not None:
        states = shown.figures.states
        if states.get("paused") and not states.get("waiting"):
            return JobState.PAUSED
    return meant


async def _envelopes(view: View, shown: ShownQueue, state: str, wanted: JobFilter) -> dict[str, Any]:
    place: Any = {"waiting": "jobs", "delayed": "scheduled", "failed": "dlq"}[state]
    newest = view.query("order", "newest") != "oldest"
    page = await shown.source.run(
        pages.envelope_page(
            shown.keys,
            place,
            after=view.query("after"),
            newest_first=newest,
            limit=view.count("limit", 50, PAGE_SIZES[-1]),
        )
    )
    rows = [envelope_row(view, shown, state, row) for row in page.rows]
    matching = [row for row in rows if _matches(row, wanted)]
    facts = {"examined": len(rows) if wanted else None, "total": page.total, "first": 0}
    return {"rows": matching, "next": page.next or "", "facts": facts}


def _matches(row: JobRow, wanted: JobFilter) -> bool:
    texts = (row.job_id, row.name, row.data, row.error)
    if wanted.text and not any(wanted.text.casefold() in one.casefold() for one in texts):
        return False
    if wanted.name and row.name != wanted.name:
        return False
    return not wanted.since_ms or (row.ended_ms or row.added_ms or 0) >= wanted.since_ms


async def _consumers(shown: ShownQueue) -> list[dict[str, Any]]:
    """Returns the consumers of a stream queue with their pending entries."""
    if shown.found.kind != "stream" or shown.figures is None:
        return []
    seen = shown.figures.overview
    if not isinstance(seen, EnvelopeOverview) or not seen.consumers:
        return []
    return await shown.source.run(streams.stream_consumers(shown.keys.stream, shown.keys.group))
