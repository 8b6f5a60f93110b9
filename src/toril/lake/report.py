"""One page about all queues: throughput, waiting and running times, errors, workers, alerts, lost events.

Guarantee: the page needs no other file (no script, no font, no request), and no text of a job or an error can become
markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final

from toril.errors import TableMissing
from toril.lake import _report_sections as sections
from toril.lake.lake import Lake

_MANY_MINUTES: Final = 360  # a longer time is shown by the hour
_MOST_QUEUES: Final = 40  # with plots; the overview names all

_ALWAYS: Final = datetime(1, 1, 1, tzinfo=UTC)

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Part:
    """A lake, and the time from which on its data is shown."""

    lake: Lake
    since: datetime

    def query(self, sql: str) -> Rows:
        """The rows of a query that uses that time as `$since`."""
        return list(self.lake.query(sql, {"since": self.since}).to_pylist())


def write_report(
    lake: Lake,
    target: str | Path = "report.html",
    *,
    since: datetime | None = None,
    now: datetime | None = None,
) -> Path:
    """Writes the page about all data, or about the data since a moment. Returns its path."""
    path = Path(target)
    path.write_text(render(lake, now or datetime.now(UTC), since), encoding="utf-8")
    return path


def render(lake: Lake, now: datetime, since: datetime | None = None) -> str:
    """The page as text."""
    if not lake.tables():
        raise TableMissing("gold/queue_minute", lake.url)
    style = resources.files("toril.lake").joinpath("report.css").read_text(encoding="utf-8")
    body = "".join(_body(_Part(lake, since or _ALWAYS), now))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues — toril</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{body}</main></body></html>"
    )


def _body(part: _Part, now: datetime) -> list[str]:
    rows, unit, seconds = _figures(part)
    queues: dict[str, Rows] = {}
    for row in rows:
        queues.setdefault(row["queue"], []).append(row)
    alerts = _alerts(part)
    period = _period(part, rows, unit)
    alarms = _alarms(alerts, unit)
    unknown = _unknown(part, unit, period)
    most_severe = sections.by_severity(queues, alarms)
    changes = _backlog_changes(part, unit)
    return [
        _head(period, now, alerts),
        sections.tiles(rows, _latency(part), _lost(part), seconds),
        sections.alert_list(alerts, period, seconds),
        sections.overview(queues, _latency_by_queue(part), list(alarms), seconds, unknown)
        if len(queues) > 1
        else "",
        *(
            sections.queue_plots(
                queue,
                queues[queue],
                unit,
                seconds,
                alarms.get(queue, ()),
                unknown.get(queue, ()),
                changes.get(queue, {}),
            )
            for queue in most_severe[:_MOST_QUEUES]
        ),
        sections.error_list(_errors(part)),
        sections.worker_list(part.query(_WORKERS)),
        sections.gap_list(part.query(_GAPS)),
    ]


def _period(part: _Part, rows: Rows, unit: str) -> tuple[datetime, datetime] | None:
    """From the first to the last span with data or with missing events."""
    if not rows:
        return None
    gaps = [row["until"] for row in part.query(_GAP_SPANS.format(unit=unit))]
    moments = [*(row["at"] for row in rows), *gaps]
    return min(moments), max(moments)


def _head(
    period: tuple[datetime, datetime] | None, now: datetime, alerts: Sequence[Mapping[str, object]]
) -> str:
    covered = _period_text(*period) if period else "no attempts yet"
    concerned = len({row["queue"] for row in alerts})
    summary = f"{concerned} queue{'s' if concerned > 1 else ''} with alerts" if concerned else "all calm"
    css_class = "bad" if concerned else "good"
    return (
        f'<header><h1>Queues</h1><span class="verdict {css_class}">{summary}</span>'
        f"<p>{covered} · made {now:%d %b %Y %H:%M} UTC</p></header>"
    )


def _period_text(start: datetime, end: datetime) -> str:
    """Both ends, and the day only once where one is enough."""
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%d %b %Y %H:%M}"
    return f"{start:%d %b %Y %H:%M} – {until} UTC"


# --- queries -----------------------------------------------------------------------------------


_WORKERS: Final = (
    "select * from gold.workers where last_report_at is null or last_report_at >= $since "
    "order by queue, worker limit 100"
)
_GAPS: Final = "select queue, ts, lost, reason from silver.gaps where ts >= $since order by ts desc limit 20"
# From the last event before a gap to the first one after it. Before its first event, nothing is known of a queue.
_GAP_SPANS: Final = (
    "select queue, date_trunc('{unit}', make_timestamptz(split_part(from_id, '-', 1)::bigint * 1000)) as start, "
    "date_trunc('{unit}', ts) as until from silver.gaps where ts >= $since"
)


def _figures(part: _Part) -> tuple[Rows, str, int]:
    minutes = "select count(distinct minute) as n from gold.queue_minute where minute >= $since"
    unit = "minute" if part.query(minutes)[0]["n"] <= _MANY_MINUTES else "hour"
    since = f"where {unit} >= date_trunc('{unit}', $since) order by queue, {unit}"
    rows = part.query(f"select * from gold.queue_{unit} {since}")
    return [{**row, "at": row[unit]} for row in rows], unit, 60 if unit == "minute" else 3600


_QUANTILES: Final = (
    "quantile_cont(wait_ms, 0.95) as wait, quantile_cont(run_ms, 0.95) as run, "
    "quantile_cont(wait_ms, 0.5) as wait_p50, quantile_cont(run_ms, 0.5) as run_p50 from silver.attempts "
    "where ended_at >= $since"
)


def _latency(part: _Part) -> dict[str, object]:
    return part.query(f"select {_QUANTILES}")[0]


def _latency_by_queue(part: _Part) -> dict[str, dict[str, object]]:
    return {row["queue"]: row for row in part.query(f"select queue, {_QUANTILES} group by queue")}


def _backlog_changes(part: _Part, unit: str) -> dict[str, dict[datetime, int]]:
    """Queue → span → how many jobs more are ready and not taken at its end than at the end of the span before."""
    rows = part.query(
        f"select queue, date_trunc('{unit}', moment) as at, sum(step)::bigint as change from ("
        "select queue, ready_at as moment, 1 as step from silver.attempts "
        "where ended_at >= $since and active_at is not null "
        "union all select queue, active_at, -1 from silver.attempts "
        "where ended_at >= $since and ready_at is not null "
        "union all select queue, coalesce(ready_at, added_at), 1 from silver.jobs "
        "where phase = 'open' and state in ('waiting', 'prioritized', 'paused')) "
        "where moment is not null group by all"
    )
    found: dict[str, dict[datetime, int]] = {}
    for row in rows:
        found.setdefault(row["queue"], {})[row["at"]] = row["change"]
    return found


def _lost(part: _Part) -> dict[str, int]:
    """The number of lost events, and of the gaps whose size is unknown."""
    return part.query(
        "select coalesce(sum(lost), 0)::bigint as events, count(*) filter (where lost is null) as uncounted "
        "from silver.gaps where ts >= $since"
    )[0]


def _unknown(part: _Part, unit: str, period: tuple[datetime, datetime] | None) -> dict[str, list[datetime]]:
    """Queue → beginnings of the spans, within what the page shows, of which events are missing."""
    if period is None:
        return {}
    seconds = timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)
    found: dict[str, list[datetime]] = {}
    for row in part.query(_GAP_SPANS.format(unit=unit)):
        moment, end = max(row["start"], period[0]), min(row["until"], period[1])
        spans = found.setdefault(row["queue"], [])
        while moment <= end:
            spans.append(moment)
            moment += seconds
    return found


def _alerts(part: _Part) -> Rows:
    return part.query(
        "select rule, queue, subject, max(value) as worst, any_value(threshold) as threshold, "
        "max(raised_at) as last, count(*) as times, any_value(message) as message, list(raised_at) as moments "
        "from gold.alerts where raised_at >= $since group by rule, queue, subject order by last desc limit 20",
    )


def _alarms(alerts: Rows, unit: str) -> dict[str, list[datetime]]:
    """Queue → beginnings of the spans in which one of its alerts stood."""
    found: dict[str, list[datetime]] = {}
    for row in alerts:
        spans = [one.replace(second=0, microsecond=0) for one in row["moments"]]
        if unit == "hour":
            spans = [one.replace(minute=0) for one in spans]
        found.setdefault(row["queue"], []).extend(spans)
    return found


def _errors(part: _Part) -> Rows:
    """By the day, as they are counted: the day of the beginning is covered whole."""
    return part.query(
        "select queue, name, pattern, sum(count)::bigint as times, sum(jobs)::bigint as jobs, "
        "min(first_at) as first, max(last_at) as last, arg_max(sample_job_id, last_at) as job "
        "from gold.errors where last_at >= $since group by queue, name, pattern order by times desc limit 25",
    )
