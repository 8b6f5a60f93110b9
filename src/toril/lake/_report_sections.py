"""The sections of the report: all queues, each queue, errors, workers and lost events.

Guarantee: every text that comes from a job, an error or a worker is escaped here, once.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from toril.plots import Series, bands, sparkline, stacked_bars, timeline
from toril.protocol.printable import one_line

Row = Mapping[str, Any]

OUTCOMES: Final = ("completed", "retried", "failed", "stalled", "suspended")
_LINE_HEADS: Final = (
    "", "queue", "attempts", "completed", "failed", "retried", "stalled", "wait p95", "run p95",
)  # fmt: skip
_PERCENTILES: Final = ("p50", "p95", "p99")
# The thresholds of the alerts: values above them are red here.
_MUCH: Final = 0.10


def escape(text: str) -> str:
    """Returns text for the page: no markup, and no character that hides or reorders others."""
    return html.escape(one_line(text))


def tiles(rows: Sequence[Row], times: Row, lost: Mapping[str, int], seconds: int) -> str:
    """The tiles with the largest figures."""
    total = {name: sum(row[name] for row in rows) for name in (*OUTCOMES, "attempts")}
    busiest: dict[object, int] = {}
    for row in rows:
        busiest[row["at"]] = busiest.get(row["at"], 0) + row["completed"]
    peak = max(busiest.values(), default=0) / seconds
    found = [
        _tile("completed", _short_number(total["completed"]), f"peak {peak:,.1f} a second", "good"),
        _tile(
            "failed",
            _short_number(total["failed"]),
            percent(total["failed"], total["attempts"]),
            _css_class(total["failed"]),
        ),
        _rate_tile("retried", total),
        _rate_tile("stalled", total),
        _tile("wait p95", duration(times["wait"]), f"p50 {duration(times['wait_p50'])}", ""),
        _tile("run p95", duration(times["run"]), f"p50 {duration(times['run_p50'])}", ""),
        _lost_tile(lost["events"], lost["uncounted"]),
    ]
    return f'<section class="tiles">{"".join(found)}</section>'


def _lost_tile(events: int, uncounted: int) -> str:
    """With a stream that was deleted, an unknown number of events is lost."""
    if not uncounted:
        return _tile("events lost", _short_number(events), "before they were read", _css_class(events))
    beside = f"{uncounted:,} gap{'s' if uncounted > 1 else ''} of unknown size"
    return _tile("events lost", f"{_short_number(events)}+" if events else "unknown", beside, "bad")


def _rate_tile(name: str, total: Mapping[str, int]) -> str:
    much = total[name] > total["attempts"] * _MUCH
    return _tile(
        name, percent(total[name], total["attempts"]), f"{total[name]:,} attempts", "bad" if much else ""
    )


def _short_number(count: int) -> str:
    """Exact as long as it is short."""
    for limit, unit in ((10**9, "G"), (10**6, "M")):
        if count >= limit:
            return f"{count / limit:.4g} {unit}"
    return f"{count:,}"


def _css_class(count: int) -> str:
    return "bad" if count else "good"


def _tile(label: str, value: str, beside: str, css_class: str) -> str:
    words = f"<span>{escape(label)}</span><b>{escape(value)}</b><small>{escape(beside)}</small>"
    return f'<div class="tile {css_class}">{words}</div>'


def overview(
    queues: Mapping[str, Sequence[Row]],
    latency: Mapping[str, Row],
    alarmed: Sequence[str],
    seconds: int,
    unknown: Mapping[str, Sequence[datetime]],
) -> str:
    """One line for each queue, the most severe first."""
    order = by_severity(queues, alarmed)
    lines = [
        _line(
            queue,
            queues[queue],
            latency.get(queue, {}),
            queue in alarmed,
            without_holes(queues[queue], seconds, unknown.get(queue, ())),
            unknown.get(queue, ()),
        )
        for queue in order
    ]
    head = "".join(f"<th>{one}</th>" for one in _LINE_HEADS)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<section><h2>All queues</h2><table class="numbers">{body}</table></section>'


def by_severity(queues: Mapping[str, Sequence[Row]], alarmed: Collection[str]) -> list[str]:
    """Returns the queues: those with alerts first, then by the share of attempts that failed, then by their number."""

    def severity(queue: str) -> tuple[bool, float, int]:
        attempts = sum(row["attempts"] for row in queues[queue])
        failed = sum(row["failed"] for row in queues[queue])
        return queue not in alarmed, -failed / attempts if attempts else 0.0, -attempts

    return sorted(queues, key=severity)


def _line(
    queue: str,
    rows: Sequence[Row],
    latency: Row,
    alarmed: bool,
    spans: tuple[list[datetime], list[Row]],
    unknown: Sequence[datetime],
) -> str:
    times, filled = spans
    total = {name: sum(row[name] for row in rows) for name in (*OUTCOMES, "attempts")}
    shares = [percent(total[name], total["attempts"]) for name in ("failed", "retried", "stalled")]
    figures = [f"{total['completed']:,}", *shares, *(duration(latency.get(name)) for name in ("wait", "run"))]
    cells = [
        f'<td><i class="dot {"bad" if alarmed else "good"}" title="{"alerts" if alarmed else "no alert"}"></i></td>',
        f'<td class="name">{escape(queue)}</td>',
        f"<td>{sparkline(_layers(rows, filled), unknown=[one in set(unknown) for one in times])}</td>",
        *(f'<td data-label="{name}">{one}</td>' for name, one in zip(_LINE_HEADS[3:], figures, strict=True)),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def alert_list(rows: Sequence[Row], period: tuple[datetime, datetime] | None, seconds: int) -> str:
    """The alerts, with their times on a strip."""
    if not rows:
        return '<section class="calm"><b>No alerts.</b> Every rate is below its threshold.</section>'
    return f'<section class="alerts"><h2>Alerts</h2>{"".join(_alert(row, period, seconds) for row in rows)}</section>'


def _alert(row: Row, period: tuple[datetime, datetime] | None, seconds: int) -> str:
    where = f"{row['queue']} · {row['subject']}" if row["subject"] else row["queue"]
    facts = (
        f"{row['rule']}: {_value(row['worst'])} at worst, threshold {_value(row['threshold'])}, "
        f"{row['times']}×, last {row['last']:%d %b %H:%M}"
    )
    inside = [one for one in row["moments"] if period and period[0] <= one <= period[1]]
    strip = (
        f"<div>{timeline(*period, inside, seconds)}{_strip_times(*period)}</div>" if period and inside else ""
    )
    return (
        f'<div class="alert"><p><b>{escape(where)}</b> {escape(row["message"])}<br>'
        f"<small>{escape(facts)}</small></p>{strip}</div>"
    )


def _strip_times(start: datetime, end: datetime) -> str:
    """The axis of a strip: its beginning, middle and end."""
    moments = (start, start + (end - start) / 2, end)
    words = "".join(f"<span>{one:%d %b %H:%M}</span>" for one in moments)
    return f'<div class="strip-times">{words}</div>'


def _value(value: float) -> str:
    """Rates are printed as percentages; rules of the user may count anything."""
    return f"{value:.1%}" if value <= 1 else f"{value:,.4g}"


def queue_plots(
    queue: str,
    rows: Sequence[Row],
    unit: str,
    seconds: int,
    alarms: Sequence[datetime],
    unknown: Sequence[datetime] = (),
    changes: Mapping[datetime, int] | None = None,
) -> str:
    """Attempts, backlog, waiting and running of one queue over time; alerts are shaded, what is unknown is hatched.

    `changes` are those of the backlog in each span of time.
    """
    times, filled = without_holes(rows, seconds, unknown)
    layers = _layers(rows, filled)
    done = sum(row["completed"] for row in rows)
    bars = stacked_bars(times, layers, seconds, alarms, unknown)
    keys = _legend(layers) + ('<span class="key unknown">unknown</span>' if unknown else "")
    waiting = [Series(name="backlog", kind="backlog", values=backlog(times, changes or {}))]
    ready = stacked_bars(times, waiting, seconds, alarms, unknown)
    key = '<span class="key backlog">jobs that wait</span>'
    figures = [
        f"<figure><figcaption>Attempts per {unit} {keys}</figcaption>{bars}</figure>",
        f"<figure><figcaption>Backlog, end of each {unit} {key}</figcaption>{ready}</figure>",
    ]
    for what in ("wait", "run"):
        three = [
            Series(name=name, kind=what, values=[row.get(f"{what}_{name}_ms") for row in filled])
            for name in _PERCENTILES
        ]
        words = {"wait": "Waiting", "run": "Running"}[what]
        key = f'<span class="key {what}">p95</span><span class="key area {what}">p50 to p99</span>'
        plot = bands(times, three, "ms", seconds, alarms, unknown)
        figures.append(f"<figure><figcaption>{words}, ms {key}</figcaption>{plot}</figure>")
    heading = f"<h2>{escape(queue)} <small>{done:,} completed</small></h2>"
    return f'<section>{heading}<div class="plots">{"".join(figures)}</div></section>'


def backlog(times: Sequence[datetime], changes: Mapping[datetime, int]) -> list[float]:
    """Returns how many jobs wait at the end of each span; what became ready earlier is there from the first on."""
    count, values, moments = 0, [], sorted(changes)
    for at in times:
        while moments and moments[0] <= at:
            count += changes[moments.pop(0)]
        values.append(float(max(0, count)))  # a job whose beginning is unknown does not wait
    return values


def _layers(rows: Sequence[Row], filled: Sequence[Row]) -> list[Series]:
    shown = [name for name in OUTCOMES if any(row.get(name) for row in rows)]
    return [Series(name=name, kind=name, values=[row.get(name) for row in filled]) for name in shown]


def without_holes(
    rows: Sequence[Row], seconds: int, unknown: Sequence[datetime] = ()
) -> tuple[list[datetime], list[Row]]:
    """A row for each span from the first to the last with a value; spans without one are empty."""
    known = {row["at"]: row for row in rows}
    moments = [*known, *unknown]
    times = [min(moments)]
    while times[-1] < max(moments):
        times.append(times[-1] + timedelta(seconds=seconds))
    return times, [known.get(moment, {}) for moment in times]


def _legend(series: Sequence[Series]) -> str:
    return "".join(f'<span class="key {one.kind}">{escape(one.name)}</span>' for one in series)


def error_list(rows: Sequence[Row]) -> str:
    """Errors by fingerprint, the most frequent first, each with a bar."""
    most = max((row["times"] for row in rows), default=1)
    cells = [
        [
            escape(row["queue"]),
            escape(row["name"] or ""),
            f"{_meter(row['times'] / most)}<code>{escape(row['pattern'])}</code>",
            f"{row['times']:,}",
            f"{row['jobs']:,}",
            f"{row['first']:%d %b %H:%M}",
            f"{row['last']:%d %b %H:%M}",
            escape(row["job"] or ""),
        ]
        for row in rows
    ]
    heads = ("queue", "job", "what it says", "times", "jobs", "first", "last", "for instance")
    return table("Errors", heads, cells, numbers=(3, 4), whole=(5, 6))


def _meter(share: float) -> str:
    return f'<span class="meter"><i style="width:{max(share, 0.01):.0%}"></i></span>'


def worker_list(rows: Sequence[Row]) -> str:
    """The last report of each worker."""
    cells = [
        [
            escape(row["queue"]),
            escape(row["worker"]),
            str(row["in_hand"]),
            _share(row["heartbeats_failed"], row["heartbeats_ok"], 0.05),
            _share(row["sweeps_skipped"], row["sweeps_done"], _MUCH),
            f"{(row['memory_bytes'] or 0) / 2**20:,.0f} MB",
            f"{row['last_report_at']:%d %b %H:%M:%S}" if row["last_report_at"] else "",
        ]
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
    return table("Workers", heads, cells, numbers=(2, 3, 4, 5), whole=(6,))


def _share(part: int | None, rest: int | None, threshold: float) -> str:
    whole = (part or 0) + (rest or 0)
    words = percent(part, whole)
    return f'<b class="bad">{words}</b>' if whole and (part or 0) / whole > threshold else words


def gap_list(rows: Sequence[Row]) -> str:
    cells = [
        [
            escape(row["queue"]),
            f"{row['ts']:%d %b %H:%M:%S}",
            "unknown" if row["lost"] is None else f"{row['lost']:,}",
            escape(row["reason"] or ""),
        ]
        for row in rows
    ]
    return table(
        "Events nobody could read", ("queue", "until", "lost", "why"), cells, numbers=(2,), whole=(1,)
    )


def table(
    title: str,
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> str:
    """A table of cells that are markup already; nothing at all when there are none; `whole` ones do not wrap."""
    if not cells:
        return ""
    kind = ["num" if at in numbers else "whole" if at in whole else "" for at in range(len(heads))]
    head = "".join(f'<th class="{one}">{escape(word)}</th>' for one, word in zip(kind, heads, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{one}" data-label="{escape(word)}">{cell}</td>'
            for one, word, cell in zip(kind, heads, row, strict=True)
        )
        + "</tr>"
        for row in cells
    )
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def percent(part: float | None, whole: float | None) -> str:
    return f"{(part or 0) / whole:.1%}" if whole else "–"


def duration(ms: float | None) -> str:
    if ms is None:
        return "–"
    for limit, divisor, unit in ((1000, 1, "ms"), (60_000, 1000, "s"), (3_600_000, 60_000, "min")):
        if ms < limit:
            return f"{ms / divisor:.3g} {unit}"
    return f"{ms / 3_600_000:.3g} h"
