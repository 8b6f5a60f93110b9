"""The overview: all queues with their states, rates, ages and findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import Page, View
from toril.observe.doctor import Finding

Verdict = Literal["ok", "busy", "paused", "attention"]
# A job that is ready and not fetched for so long means that workers are missing or too few.
LONG_WAIT_SECONDS: Final = 300
# A page with more queues is too long to read; the filter and the order lead to the others.
MOST_ROWS: Final = 200
_ORDER: Final[dict[Verdict, int]] = {"attention": 0, "paused": 1, "busy": 2, "ok": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewRow:
    """One queue with its figures and findings."""

    queue: ShownQueue
    verdict: Verdict
    reasons: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


async def overview(view: View) -> Page:
    view.sources.take_lake_rates(view.history.rates())
    seen = await view.sources.overview(view.access)
    wanted = view.query("q").casefold()
    found = view.parts.findings.known(view.access)
    rows = [_row(one, found.get(one.id, [])) for one in seen.queues if wanted in one.id.casefold()]
    sort = view.query("sort", "attention")
    rows.sort(key=lambda row: _sort_key(row, sort))
    first = view.count("from", 0, len(rows))
    return Page(
        template="overview",
        title="Queues",
        place="overview",
        values={
            "rows": rows[first : first + MOST_ROWS],
            "first": first,
            "matching": len(rows),
            "most": MOST_ROWS,
            "errors": seen.errors,
            "now_ms": seen.now_ms,
            "is_searched": seen.is_searched,
            "totals": _totals(seen.queues),
            "q": view.query("q"),
            "sort": sort,
            "total": len(seen.queues),
            "several": len(view.sources.all) > 1,
        },
        moment=(*seen.moments, *seen.errors.items(), view.parts.findings.moment),
    )


def _row(queue: ShownQueue, findings: list[Finding]) -> OverviewRow:
    figures = queue.figures
    if figures is None:
        return OverviewRow(queue=queue, verdict="attention", reasons=[queue.error], findings=findings)
    reasons = []
    if figures.oldest_waiting > LONG_WAIT_SECONDS and not figures.paused:
        reasons.append("long wait" if figures.worker_count or not figures.ready else "no worker")
    if figures.dead:
        reasons.append(f"{figures.dead:,} failed")
    if figures.broken_schedulers:
        reasons.append("broken scheduler")
    serious = [one for one in findings if one.level == "problem"]
    verdict: Verdict = "attention" if reasons or serious else "busy" if figures.states.get("active") else "ok"
    if figures.paused and verdict != "attention":
        verdict = "paused"
    return OverviewRow(queue=queue, verdict=verdict, reasons=reasons, findings=findings)


def _sort_key(row: OverviewRow, sort: str) -> tuple[float, str]:
    figures = row.queue.figures
    if figures is None or sort == "attention":
        return _ORDER[row.verdict], row.queue.id
    match sort:
        case "waiting":
            return -figures.ready, row.queue.id
        case "failed":
            return -figures.dead, row.queue.id
        case "age":
            return -figures.oldest_waiting, row.queue.id
        case "rate":
            return -(row.queue.rate.now if row.queue.rate else 0), row.queue.id
    return 0, row.queue.id


def _totals(shown: list[ShownQueue]) -> dict[str, float]:
    known = [one.figures for one in shown if one.figures is not None]
    return {
        "queues": len(shown),
        "ready": sum(one.ready for one in known),
        "active": sum(one.states.get("active", 0) for one in known),
        "delayed": sum(one.states.get("delayed", 0) for one in known),
        "failed": sum(one.dead for one in known),
        "workers": sum(one.worker_count for one in known),
        "rate": sum(one.rate.now for one in shown if one.rate is not None),
        "oldest": max((one.oldest_waiting for one in known), default=0.0),
    }
