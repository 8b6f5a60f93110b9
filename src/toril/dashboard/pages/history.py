"""History: what the lake knows of a queue over time, and two ranges side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup

from toril.dashboard._history import Rows
from toril.dashboard._view import Page, View
from toril.errors import InvalidOption
from toril.plots import Series, bands, stacked_bars

RANGES: Final = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720, "90d": 2160}
# A longer range is shown by the hour.
_MINUTES_UP_TO: Final = timedelta(hours=6)
_KINDS: Final = ("completed", "retried", "failed", "stalled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A time to look at."""

    name: str
    start: datetime
    end: datetime

    @property
    def unit(self) -> str:
        return "minute" if self.end - self.start <= _MINUTES_UP_TO else "hour"


async def history(view: View) -> Page:
    if not view.history.place:
        return _page(view, ranges=[], queues=[], alerts=[])
    now = datetime.now(UTC)
    first = _range(view.query("a", "24h"), now)
    second = _range(view.query("b"), now) if view.query("b") else None
    queue = view.query("queue")
    names = await view.history.rows("select distinct queue from gold.queue_hour order by queue limit 1000")
    queues = [row["queue"] for row in names if view.access.sees(row["queue"])]
    if queue and queue not in queues:
        queue = ""
    chosen = [queue] if queue else queues
    ranges = await asyncio.gather(
        *(_figures(view, chosen, one) for one in (first, second) if one is not None)
    )
    both = [row for one in ranges for row in one["rows"]]
    ranges = [one | _plots(one["rows"], one["range"], one["gaps"], both) for one in ranges]
    alerts = await view.history.rows(
        "select rule, queue, message, raised_at from gold.alerts where raised_at >= $start "
        "and list_contains($queues, queue) order by raised_at desc limit 50",
        {"start": first.start, "queues": chosen},
    )
    return _page(view, ranges=ranges, queues=queues, alerts=alerts, queue=queue, is_one=len(chosen) == 1)


def _page(view: View, **values: object) -> Page:
    return Page(
        template="history",
        title="History",
        place="history",
        values={
            "a": view.query("a", "24h"),
            "b": view.query("b"),
            "queue": "",
            "names": list(RANGES),
            "place_of_lake": view.history.place,
            "problem": view.history.problem,
            **values,
        },
        is_live=False,
    )


def _range(text: str, now: datetime) -> Range:
    """Returns a range: `24h` until now, `24h@2026-01-31T12:00` until a moment, `-24h` for the one before `24h`."""
    span, _, until = text.partition("@")
    earlier = span.startswith("-")
    hours = RANGES.get(span.lstrip("-"))
    if hours is None:
        raise InvalidOption("a", f"{text[:50]!r} is not a range", f"choose one of {', '.join(RANGES)}")
    end = now
    if until:
        try:
            end = datetime.fromisoformat(until)
        except ValueError:
            raise InvalidOption("a", f"{until[:50]!r} is not a time", "write 24h@2026-01-31T12:00") from None
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
    length = timedelta(hours=hours)
    end -= length if earlier else timedelta()
    name = f"the {span.lstrip('-')} before" if earlier else text
    return Range(name=name, start=end - length, end=end)


async def _figures(view: View, queues: list[str], wanted: Range) -> dict[str, Any]:
    parameters = {"start": wanted.start, "end": wanted.end, "queues": queues}
    unit = wanted.unit
    rows, exact, gaps, errors = await asyncio.gather(
        view.history.rows(
            f"select {unit} as at, {', '.join(f'sum({kind})::bigint as {kind}' for kind in _KINDS)}, "
            "max(wait_p50_ms) as wait_p50, max(wait_p95_ms) as wait_p95, max(wait_p99_ms) as wait_p99, "
            "max(run_p50_ms) as run_p50, max(run_p95_ms) as run_p95, max(run_p99_ms) as run_p99 "
            f"from gold.queue_{unit} where {unit} >= $start and {unit} < $end and list_contains($queues, queue) "
            f"group by {unit} order by {unit}",
            parameters,
        ),
        view.history.rows(
            "select count(*) as attempts, count(*) filter (where outcome = 'completed') as completed, "
            "count(*) filter (where outcome = 'failed') as failed, "
            "quantile_cont(wait_ms, [0.5, 0.95, 0.99]) as wait, quantile_cont(run_ms, [0.5, 0.95, 0.99]) as run "
            "from silver.attempts where day >= $start::date and ended_at >= $start and ended_at < $end "
            "and list_contains($queues, queue)",
            parameters,
        ),
        view.history.rows(
            "select ts, make_timestamptz(split_part(from_id, '-', 1)::bigint * 1000) as begin from silver.gaps "
            "where ts >= $start and ts < $end and list_contains($queues, queue)",
            parameters,
        ),
        view.history.rows(
            "select queue, pattern, fingerprint, sum(count)::bigint as times, max(last_at) as last, "
            "min(first_at) as first, arg_max(sample_job_id, last_at) as job from gold.errors "
            "where last_at >= $start and first_at < $end and list_contains($queues, queue) "
            "group by queue, pattern, fingerprint order by times desc limit 20",
            parameters,
        ),
    )
    return {
        "range": wanted,
        "exact": exact[0] if exact else None,
        "errors": errors,
        "rows": rows,
        "gaps": gaps,
    }


def _plots(rows: Rows, wanted: Range, gaps: Rows, both: Rows) -> dict[str, Markup]:
    """Returns the plots of a range. `both` are the rows of all ranges, which have the same scales."""
    unknown = _unknown(gaps, wanted)
    return {
        "throughput": _throughput(rows, wanted, unknown, both),
        "waiting": _latency(rows, wanted, "wait", unknown, both),
        "running": _latency(rows, wanted, "run", unknown, both),
    }


def _times(wanted: Range) -> tuple[list[datetime], int]:
    seconds = 60 if wanted.unit == "minute" else 3600
    first = int(wanted.start.timestamp()) // seconds * seconds
    return [
        datetime.fromtimestamp(at, UTC) for at in range(first, int(wanted.end.timestamp()), seconds)
    ], seconds


def _unknown(gaps: Rows, wanted: Range) -> list[datetime]:
    times, seconds = _times(wanted)
    span = timedelta(seconds=seconds)
    return [at for at in times if any(row["begin"] < at + span and row["ts"] >= at for row in gaps)]


def _by_time(rows: Rows, times: Sequence[datetime]) -> list[dict[str, Any]]:
    known = {row["at"].astimezone(UTC): row for row in rows}
    return [known.get(at, {}) for at in times]


def _throughput(rows: Rows, wanted: Range, unknown: list[datetime], both: Rows) -> Markup:
    times, seconds = _times(wanted)
    placed = _by_time(rows, times)
    series = [Series(name=kind, kind=kind, values=[row.get(kind) for row in placed]) for kind in _KINDS]
    beside = [sum(row[kind] or 0 for kind in _KINDS) for row in both]
    return Markup(stacked_bars(times, series, seconds, unknown=unknown, beside=beside))


def _latency(rows: Rows, wanted: Range, kind: str, unknown: list[datetime], both: Rows) -> Markup:
    times, seconds = _times(wanted)
    placed = _by_time(rows, times)
    series = [
        Series(name=name, kind=kind, values=[row.get(f"{kind}_{name}") for row in placed])
        for name in ("p50", "p95", "p99")
    ]
    beside = [row[f"{kind}_{one.name}"] or 0 for row in both for one in series]
    return Markup(bands(times, series, "ms", seconds, unknown=unknown, beside=beside))
