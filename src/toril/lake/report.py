"""One page about all queues: throughput, waiting and running times, errors, workers, alerts, losses.

Guarantee: the page stands alone (no script, no font, no request), and nothing that a job or an error says can become
markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

from toril.lake._plots import Series, lines, stacked_bars
from toril.lake.errors import TableMissing
from toril.lake.lake import Lake

_MANY_MINUTES: Final = 360  # a longer time is shown by the hour
_OUTCOMES: Final = ("completed", "retried", "failed", "stalled", "suspended")
_LATENCIES: Final = (("p50", "low"), ("p95", "mid"), ("p99", "high"))
_MOST_QUEUES: Final = 40


def write_report(lake: Lake, target: str | Path = "report.html", *, now: datetime | None = None) -> Path:
    """Writes the page and says where."""
    path = Path(target)
    path.write_text(render(lake, now or datetime.now(UTC)), encoding="utf-8")
    return path


def render(lake: Lake, now: datetime) -> str:
    """The page as text."""
    if not lake.tables():
        raise TableMissing("gold/queue_minute", lake.url)
    rows, unit, seconds = _figures(lake)
    style = resources.files("toril.lake").joinpath("report.css").read_text(encoding="utf-8")
    queues = list(dict.fromkeys(row["queue"] for row in rows))
    body = [
        _head(rows, now),
        _tiles(lake, rows),
        _alerts(lake),
        *(
            _queue(queue, [row for row in rows if row["queue"] == queue], unit, seconds)
            for queue in queues[:_MOST_QUEUES]
        ),
        _errors(lake),
        _workers(lake),
        _gaps(lake),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues — toril</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{''.join(body)}</main></body></html>"
    )


def _figures(lake: Lake) -> tuple[list[dict[str, Any]], str, int]:
    span = lake.query("select count(distinct minute) as n from gold.queue_minute").to_pylist()[0]["n"]
    unit = "minute" if span <= _MANY_MINUTES else "hour"
    sql = f"select * from gold.queue_{unit} order by queue, {unit}"  # noqa: S608 — names are ours
    rows = lake.query(sql).to_pylist()
    return [{**row, "at": row[unit]} for row in rows], unit, 60 if unit == "minute" else 3600


def _head(rows: Sequence[Mapping[str, Any]], now: datetime) -> str:
    times = [row["at"] for row in rows]
    period = f"{min(times):%d %b %Y %H:%M} – {max(times):%d %b %Y %H:%M} UTC" if times else "no attempts yet"
    return f"<header><h1>Queues</h1><p>{period} · made {now:%d %b %Y %H:%M} UTC</p></header>"


def _tiles(lake: Lake, rows: Sequence[Mapping[str, Any]]) -> str:
    total = {name: sum(row[name] for row in rows) for name in (*_OUTCOMES, "attempts")}
    times = lake.query(
        "select quantile_cont(wait_ms, 0.95) as wait, quantile_cont(run_ms, 0.95) as run from silver.attempts"
    ).to_pylist()[0]
    lost = lake.query("select coalesce(sum(lost), 0) as n from silver.gaps").to_pylist()[0]["n"]
    stalls_much = total["stalled"] > total["attempts"] / 10  # the threshold of the alert
    tiles = [
        ("completed", f"{total['completed']:,}", "good"),
        ("failed", f"{total['failed']:,}", "bad" if total["failed"] else ""),
        ("retried", _percent(total["retried"], total["attempts"]), ""),
        ("stalled", _percent(total["stalled"], total["attempts"]), "bad" if stalls_much else ""),
        ("95 % wait less than", _duration(times["wait"]), ""),
        ("95 % run less than", _duration(times["run"]), ""),
        ("events lost", f"{int(lost):,}", "bad" if lost else "good"),
    ]
    return f'<section class="tiles">{"".join(_tile(*one) for one in tiles)}</section>'


def _tile(label: str, value: str, mood: str) -> str:
    return f'<div class="tile {mood}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _queue(queue: str, rows: Sequence[Mapping[str, Any]], unit: str, seconds: int) -> str:
    times, filled = _without_holes(rows, seconds)
    shown = [name for name in _OUTCOMES if any(row.get(name) for row in rows)]
    bars = [Series(name=name, kind=name, values=[row.get(name) for row in filled]) for name in shown]
    curves = [
        Series(
            name=f"{what} {name}",
            kind=f"{what}-{kind}",
            values=[row.get(f"{what}_{name}_ms") for row in filled],
            dashed=what == "wait",
        )
        for what in ("run", "wait")
        for name, kind in _LATENCIES
    ]
    done = sum(row["completed"] for row in rows)
    return (
        f"<section><h2>{escape(queue)} <small>{done:,} completed</small></h2><div class='pair'>"
        f"<figure><figcaption>Attempts per {unit} {_legend(bars)}</figcaption>"
        f"{stacked_bars(times, bars, f'attempts/{unit}', seconds)}</figure>"
        f"<figure><figcaption>Running and waiting {_legend(curves)}</figcaption>"
        f"{lines(times, curves, 'ms', seconds)}</figure>"
        "</div></section>"
    )


def _without_holes(
    rows: Sequence[Mapping[str, Any]], seconds: int
) -> tuple[list[datetime], list[Mapping[str, Any]]]:
    """A row for each span from the first to the last; quiet ones are empty."""
    known = {row["at"]: row for row in rows}
    times = [min(known)]
    while times[-1] < max(known):
        times.append(times[-1] + timedelta(seconds=seconds))
    return times, [known.get(moment, {}) for moment in times]


def _legend(series: Sequence[Series]) -> str:
    return "".join(
        f'<span class="key {one.kind}{" dashed" if one.dashed else ""}">{escape(one.name)}</span>'
        for one in series
    )


def _alerts(lake: Lake) -> str:
    rows = lake.query(
        "select rule, queue, subject, max(value) as worst, any_value(threshold) as threshold, max(raised_at) as last, "
        "count(*) as times, any_value(message) as message from gold.alerts group by all order by last desc limit 20"
    ).to_pylist()
    if not rows:
        return '<section class="calm">No alerts.</section>'
    items = "".join(
        f"<li><b>{escape(row['queue'])}</b> {escape(row['message'])} — {escape(row['rule'])}"
        f"{' (' + escape(row['subject']) + ')' if row['subject'] else ''}: {row['worst']:.1%} at worst, "
        f"threshold {row['threshold']:.0%}, {row['times']}×, last {row['last']:%d %b %H:%M}</li>"
        for row in rows
    )
    return f'<section class="alerts"><h2>Alerts</h2><ul>{items}</ul></section>'


def _errors(lake: Lake) -> str:
    rows = lake.query(
        "select queue, name, pattern, sum(count)::bigint as times, max(last_at) as last, "
        "arg_max(sample_job_id, last_at) as job "
        "from gold.errors group by all order by times desc limit 25"
    ).to_pylist()
    cells = [
        (
            row["queue"],
            row["name"] or "",
            row["pattern"],
            f"{row['times']:,}",
            f"{row['last']:%d %b %H:%M:%S}",
            row["job"],
        )
        for row in rows
    ]
    return _table("Errors", ("queue", "job", "what it says", "times", "last", "for instance"), cells)


def _workers(lake: Lake) -> str:
    rows = lake.query("select * from gold.workers order by queue, worker limit 100").to_pylist()
    cells = [
        (
            row["queue"],
            row["worker"],
            str(row["in_hand"]),
            _percent(row["heartbeats_failed"], (row["heartbeats_failed"] or 0) + (row["heartbeats_ok"] or 0)),
            _percent(row["sweeps_skipped"], (row["sweeps_skipped"] or 0) + (row["sweeps_done"] or 0)),
            f"{(row['memory_bytes'] or 0) / 2**20:.0f} MB",
            f"{row['last_report_at']:%d %b %H:%M:%S}" if row["last_report_at"] else "",
        )
        for row in rows
    ]
    heads = (
        "queue",
        "worker",
        "jobs in hand",
        "heartbeats failed",
        "sweeps skipped",
        "memory",
        "last report",
    )
    return _table("Workers", heads, cells)


def _gaps(lake: Lake) -> str:
    rows = lake.query("select queue, ts, lost, reason from silver.gaps order by ts desc limit 20").to_pylist()
    cells = [
        (
            row["queue"],
            f"{row['ts']:%d %b %H:%M:%S}",
            "unknown" if row["lost"] is None else f"{row['lost']:,}",
            row["reason"] or "",
        )
        for row in rows
    ]
    return _table("Events nobody could read", ("queue", "after", "lost", "why"), cells)


def _table(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    if not cells:
        return ""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(one))}</td>" for one in row) + "</tr>" for row in cells)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section><h2>{escape(title)}</h2>{table}</section>"


def _percent(part: float | None, whole: float | None) -> str:
    return f"{(part or 0) / whole:.1%}" if whole else "–"


def _duration(ms: float | None) -> str:
    if ms is None:
        return "–"
    for limit, divisor, unit in ((1000, 1, "ms"), (60_000, 1000, "s"), (3_600_000, 60_000, "min")):
        if ms < limit:
            return f"{ms / divisor:.3g} {unit}"
    return f"{ms / 3_600_000:.3g} h"
