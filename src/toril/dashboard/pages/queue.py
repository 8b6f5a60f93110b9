"""One queue: its states as tabs, a page of jobs, filters and the search."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from toril.commands import envelope_pages, pages, streams
from toril.commands.command import Command
from toril.commands.envelope_pages import EnvelopePage
from toril.commands.overview import EnvelopeOverview
from toril.commands.pages import JobFilter, JobPage, PagePosition
from toril.dashboard._rows import bullmq_row, envelope_row, fields_of
from toril.dashboard._search import ENVELOPE_PLACES, Search, search_envelopes, search_jobs
from toril.dashboard._sources import ShownQueue
from toril.dashboard._states import ENVELOPE_STATES, STATES
from toril.dashboard._view import Page, View
from toril.errors import InvalidOption
from toril.protocol.state import JobState

PAGE_SIZES: Final = (25, 50, 100, 200)
# The filters by time, as they are chosen: hours.
# A page whose search examined more jobs is not live.
MOST_LIVE: Final = 2_000
SINCE: Final = {"15m": 0.25, "1h": 1.0, "24h": 24.0, "7d": 168.0}


async def queue(view: View) -> Page:
    view.sources.take_lake_rates(view.history.rates())
    known = await view.queue()
    given = _given_state(view, known)
    is_filtered = any(view.query(one) for one in ("q", "name", "since"))
    # If the address names the state, its page is read together with the figures.
    ask = [_page_command(view, known, given)] if given and not is_filtered else []
    reading = await known.source.read(known, *ask)
    shown, state = reading.queue, given or _first_state(reading.queue)
    wanted = job_filter(view, reading.now_ms)
    if is_filtered:
        search = await _search(view, shown, state, wanted)
    elif ask and _list_of(known, state) == _list_of(shown, state):
        search = _rows(view, shown, state, reading.values[0])
    else:
        search = _rows(view, shown, state, await shown.source.run(_page_command(view, shown, state)))
    return Page(
        template="queue",
        title=shown.id,
        place="overview",
        values={
            "queue": shown,
            "state": state,
            "states": STATES if shown.is_bullmq else ENVELOPE_STATES,
            "counts": counts_of(shown),
            "findings": view.parts.findings.known(view.access).get(shown.id, []),
            "acts": _acts(shown, state),
            "order": view.query("order", "newest"),
            "after": view.query("after"),
            "q": view.query("q"),
            "name": view.query("name"),
            "since": view.query("since"),
            "sinces": list(SINCE),
            "limit": view.count("limit", 50, PAGE_SIZES[-1]),
            "now_ms": reading.now_ms,
            "is_filtered": is_filtered,
            "consumers": await _consumers(shown),
            "rows": search.rows,
            "next": search.next,
            "search": search,
        },
        # A long search is not repeated while its page is open.
        is_live=search.examined <= MOST_LIVE,
    )


def _acts(shown: ShownQueue, state: str) -> list[str]:
    """Returns what can be done with selected jobs of a state."""
    if not shown.is_bullmq:
        return ["retry", "remove"] if state == "failed" else []
    more = {"failed": ["retry"], "completed": ["retry"], "delayed": ["promote"]}
    return [*more.get(state, []), "remove"] if state != "active" else []


def _given_state(view: View, shown: ShownQueue) -> str:
    given, states = view.query("state"), STATES if shown.is_bullmq else ENVELOPE_STATES
    if given and given not in states:
        raise InvalidOption(
            "state", f"there is no state {given[:50]!r}", f"choose one of {', '.join(states)}"
        )
    return given


def _first_state(shown: ShownQueue) -> str:
    """Returns the state to look at first: one that has jobs."""
    counts, states = counts_of(shown), STATES if shown.is_bullmq else ENVELOPE_STATES
    order = ("active", "waiting", "failed", "delayed", "completed", "waiting-children", "prioritized")
    return next((one for one in order if one in states and counts.get(one)), "waiting")


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
                "since", f"{since[:50]!r} is not a time", "write 1h, or 2026-01-31T12:00"
            ) from None
    return JobFilter(text=view.query("q")[:500], name=view.query("name")[:500], since_ms=max(0, since_ms))


def _page_command(view: View, shown: ShownQueue, state: str) -> Command[Any]:
    newest, limit = view.query("order", "newest") != "oldest", view.count("limit", 50, PAGE_SIZES[-1])
    after = view.query("after")
    if not shown.is_bullmq:
        place = ENVELOPE_PLACES[state]
        return envelope_pages.envelope_page(shown.keys, place, after=after, newest_first=newest, limit=limit)
    return pages.job_page(
        shown.keys,
        _list_of(shown, state),
        after=PagePosition.parse(after),
        newest_first=newest,
        limit=limit,
        fields=fields_of(state),
    )


def _rows(view: View, shown: ShownQueue, state: str, page: JobPage | EnvelopePage) -> Search:
    if isinstance(page, EnvelopePage):
        rows = [envelope_row(view, shown, state, row) for row in page.rows]
        return Search(rows=rows, total=page.total, next=page.next or "")
    meant = _list_of(shown, state)
    rows = [bullmq_row(view, shown, meant, row) for row in page.rows]
    return Search(rows=rows, total=page.total, first=page.first, next=str(page.next or ""))


async def _search(view: View, shown: ShownQueue, state: str, wanted: JobFilter) -> Search:
    newest, limit = view.query("order", "newest") != "oldest", view.count("limit", 50, PAGE_SIZES[-1])
    after = view.query("after")
    if not shown.is_bullmq:
        return await search_envelopes(
            view, shown, state, wanted, after=after, newest_first=newest, most=limit
        )
    return await search_jobs(
        view,
        shown,
        _list_of(shown, state),
        wanted,
        after=PagePosition.parse(after),
        newest_first=newest,
        most=limit,
    )


def _list_of(shown: ShownQueue, state: str) -> JobState:
    """Returns the list that is meant: Node before version 6 keeps the waiting jobs of a paused queue apart."""
    meant = JobState.parse(state)
    if meant is JobState.WAITING and shown.figures is not None:
        states = shown.figures.states
        if states.get("paused") and not states.get("waiting"):
            return JobState.PAUSED
    return meant


async def _consumers(shown: ShownQueue) -> list[dict[str, Any]]:
    """Returns the consumers of a stream queue with their pending entries."""
    if shown.found.kind != "stream" or shown.figures is None:
        return []
    seen = shown.figures.overview
    if not isinstance(seen, EnvelopeOverview) or not seen.consumers:
        return []
    return await shown.source.run(streams.stream_consumers(shown.keys.stream, shown.keys.group))
