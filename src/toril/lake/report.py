"""One page about all queues: throughput, waiting and running times, errors, workers, alerts, losses.

Guarantee: the page stands alone (no script, no font, no request), and nothing that a job or an error says can become
markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

from toril.lake import _sections as sections
from toril.lake.errors import TableMissing
from toril.lake.lake import Lake

_MANY_MINUTES: Final = 360  # a longer time is shown by the hour
_MOST_QUEUES: Final = 40  # with plots; the overview names all

Rows = list[dict[str, Any]]


def write_report(lake: Lake, target: str | Path = "report.html", *, now: datetime | None = None) -> Path:
    """Writes the page and says where."""
    path = Path(target)
    path.write_text(render(lake, now or datetime.now(UTC)), encoding="utf-8")
    return path


def render(lake: Lake, now: datetime) -> str:
    """The page as text."""
    if not lake.tables():
        raise TableMissing("gold/queue_minute", lake.url)
    style = resources.files("toril.lake").joinpath("report.css").read_text(encoding="utf-8")
    body = "".join(_body(lake, now))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues — toril</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{body}</main></body></html>"
    )


def _body(lake: Lake, now: datetime) -> list[str]:
    rows, unit, seconds = _figures(lake)
    queues: dict[str, Rows] = {}
    for row in rows:
        queues.setdefault(row["queue"], []).append(row)
    alerts = _alerts(lake)
    period = (min(row["at"] for row in rows), max(row["at"] for row in rows)) if rows else None
    alarms = _alarms(alerts, unit)
    busiest = sorted(queues, key=lambda queue: -sum(row["attempts"] for row in queues[queue]))
    return [
        _head(period, now, alerts),
        sections.tiles(rows, _latency(lake), _lost(lake), seconds),
        sections.alert_list(alerts, period, seconds),
        sections.overview(queues, _latency_by_queue(lake), list(alarms), seconds) if len(queues) > 1 else "",
        *(
            sections.queue_plots(queue, queues[queue], unit, seconds, alarms.get(queue, ()))
            for queue in busiest[:_MOST_QUEUES]
        ),
        sections.error_list(_errors(lake)),
        sections.worker_list(_ask(lake, "select * from gold.workers order by queue, worker limit 100")),
        sections.gap_list(
            _ask(lake, "select queue, ts, lost, reason from silver.gaps order by ts desc limit 20")
        ),
    ]


def _head(
    period: tuple[datetime, datetime] | None, now: datetime, alerts: Sequence[Mapping[str, Any]]
) -> str:
    told = f"{period[0]:%d %b %Y %H:%M} – {period[1]:%d %b %Y %H:%M} UTC" if period else "no attempts yet"
    concerned = len({row["queue"] for row in alerts})
    verdict = f"{concerned} queue{'s' if concerned > 1 else ''} with alerts" if concerned else "all calm"
    mood = "bad" if concerned else "good"
    return (
        f'<header><h1>Queues</h1><span class="verdict {mood}">{verdict}</span>'
        f"<p>{told} · made {now:%d %b %Y %H:%M} UTC</p></header>"
    )


# --- what is asked of the lake -----------------------------------------------------------------------------------


def _ask(lake: Lake, sql: str) -> Rows:
    return list(lake.query(sql).to_pylist())


def _figures(lake: Lake) -> tuple[Rows, str, int]:
    span = _ask(lake, "select count(distinct minute) as n from gold.queue_minute")[0]["n"]
    unit = "minute" if span <= _MANY_MINUTES else "hour"
    rows = _ask(lake, f"select * from gold.queue_{unit} order by queue, {unit}")  # noqa: S608 — names are ours
    return [{**row, "at": row[unit]} for row in rows], unit, 60 if unit == "minute" else 3600


_QUANTILES: Final = (
    "quantile_cont(wait_ms, 0.95) as wait, quantile_cont(run_ms, 0.95) as run, "
    "quantile_cont(wait_ms, 0.5) as wait_p50, quantile_cont(run_ms, 0.5) as run_p50 from silver.attempts"
)


def _latency(lake: Lake) -> dict[str, Any]:
    return _ask(lake, f"select {_QUANTILES}")[0]


def _latency_by_queue(lake: Lake) -> dict[str, dict[str, Any]]:
    return {row["queue"]: row for row in _ask(lake, f"select queue, {_QUANTILES} group by queue")}


def _lost(lake: Lake) -> int:
    return int(_ask(lake, "select coalesce(sum(lost), 0) as n from silver.gaps")[0]["n"])


def _alerts(lake: Lake) -> Rows:
    return _ask(
        lake,
        "select rule, queue, subject, max(value) as worst, any_value(threshold) as threshold, "
        "max(raised_at) as last, count(*) as times, any_value(message) as message, list(raised_at) as moments "
        "from gold.alerts group by rule, queue, subject order by last desc limit 20",
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


def _errors(lake: Lake) -> Rows:
    return _ask(
        lake,
        "select queue, name, pattern, sum(count)::bigint as times, sum(jobs)::bigint as jobs, "
        "min(first_at) as first, max(last_at) as last, arg_max(sample_job_id, last_at) as job "
        "from gold.errors group by queue, name, pattern order by times desc limit 25",
    )
