"""Draws results as SVG: bars per contender and lines over sizes, readable on light and dark pages.

Guarantee: the same figures give the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.contenders import CONTENDERS
from benchmarks.persistence import LABELS, MODES, Persistence
from benchmarks.targets import Results
from benchmarks.workloads import persisted_name

WIDTH, ROW, LEFT, RIGHT, TOP = 760, 26, 190, 90, 46
OURS, THEIRS, INK, FAINT = "#1f7a5c", "#9aa7b4", "#57606a", "#d0d7de"
FONT = "font-family='system-ui, sans-serif' font-size='12'"


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender's figure, and the range of its runs."""

    label: str
    value: float
    low: float
    high: float
    ours: bool


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Returns horizontal bars, longest first, each with a line for the range of the runs."""
    rows = sorted(rows, key=lambda row: -row.value)
    longest = max((row.high for row in rows), default=1.0) or 1.0
    span = WIDTH - LEFT - RIGHT
    lines = [_text(12, 24, title, weight="600"), _text(WIDTH - 12, 24, unit, anchor="end")]
    for number, row in enumerate(rows):
        y = TOP + number * ROW
        length = span * row.value / longest
        lines += [
            _text(LEFT - 8, y + 15, row.label, anchor="end", weight="600" if row.ours else "400"),
            _block(y + 3, length, OURS if row.ours else THEIRS),
            _whisker(LEFT + span * row.low / longest, LEFT + span * row.high / longest, y + 11.5),
            _text(LEFT + span * row.high / longest + 8, y + 16, _number(row.value)),
        ]
    return _svg(TOP + len(rows) * ROW + 12, lines)


def lines(title: str, across: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Returns lines over a logarithmic scale of sizes; the first series is toril."""
    height, bottom = 320, 270
    points = [point for one in series.values() for point in one]
    left, right = (math.log10(edge(x for x, _ in points)) for edge in (min, max))
    top = max(y for _, y in points) * 1.1

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(x) - left) / ((right - left) or 1)
        return 70 + share * (WIDTH - 250), bottom - y / top * (bottom - 60)

    drawn = [_text(12, 24, title, weight="600"), _text(WIDTH - 12, 24, unit, anchor="end")]
    drawn += _grid(top, bottom) + _sizes(sorted({x for x, _ in points}), place, bottom)
    drawn.append(_text(70, bottom + 38, across))
    paths = [[place(x, y) for x, y in one] for one in series.values()]
    heights = _spread_labels([path[-1][1] + 4 for path in paths])
    for number, (label, path, label_y) in enumerate(zip(series, paths, heights, strict=True)):
        drawn += _line(label, path, label_y, number)
    return _svg(height, drawn)


def _spread_labels(heights: Sequence[float], least: float = 14) -> list[float]:
    """Returns the heights, moved up so that labels do not overlap."""
    moved: dict[int, float] = {}
    last = math.inf
    for at in sorted(range(len(heights)), key=lambda at: -heights[at]):
        last = moved[at] = min(heights[at], last - least)
    return [moved[at] for at in range(len(heights))]


def _grid(top: float, bottom: int) -> list[str]:
    made = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * (bottom - 60)
        made.append(
            f"<line x1='70' x2='{WIDTH - 180}' y1='{y:.1f}' y2='{y:.1f}' stroke='{FAINT}' stroke-width='0.6'/>"
        )
        made.append(_text(62, y + 4, _number(top * share), anchor="end"))
    return made


def _sizes(
    sizes: Sequence[float], place: Callable[[float, float], tuple[float, float]], bottom: int
) -> list[str]:
    return [_text(place(size, 0)[0], bottom + 18, f"{size:,.0f}", anchor="middle") for size in sizes]


def _line(label: str, points: Sequence[tuple[float, float]], label_y: float, number: int) -> list[str]:
    shades = (OURS, "#b35900", "#5b6fb5", "#8c564b", THEIRS, "#b04a8f", "#7f7f7f")
    colour = shades[number % len(shades)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in points]
    return [
        f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{2.4 if number == 0 else 1.4}'/>",
        *dots,
        _text(points[-1][0] + 10, label_y, label, colour=colour, weight="600" if number == 0 else "400"),
    ]


def _block(y: float, length: float, colour: str) -> str:
    return f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='17' rx='2' fill='{colour}'/>"


def _whisker(low: float, high: float, y: float) -> str:
    return f"<line x1='{low:.1f}' x2='{high:.1f}' y1='{y}' y2='{y}' stroke='{INK}' stroke-width='1.2'/>"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "400", colour: str = INK
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' fill='{colour}'>"
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _svg(height: float, content: Sequence[str]) -> str:
    body = "\n".join(content)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' {FONT}>\n"
        f"{body}\n</svg>\n"
    )


# --- list of plots -------------------------------------------------------------------------------------------------

BAR_PLOTS = (
    ("process-100", "rate", "processing, concurrency 100, one process", "jobs/s"),
    ("process-1", "rate", "processing, concurrency 1", "jobs/s"),
    ("process-100", "client_us", "client CPU for each job, concurrency 100", "µs"),
    ("bulk", "rate", "bulk adds of 1,000", "jobs/s"),
    ("process-100", "server_us", "server CPU for each job, concurrency 100", "µs"),
    ("add-1", "rate", "single adds, one after another", "jobs/s"),
    ("add-50", "rate", "single adds, 50 at a time", "jobs/s"),
    ("latency", "started_p50", "one job on an idle worker, until its handler runs, p50", "ms"),
    ("two-processes", "rate", "processing by two processes", "jobs/s"),
    ("list", "rate", "list queues, concurrency 100", "jobs/s"),
    ("stream", "rate", "stream queues, concurrency 100", "jobs/s"),
)
LINE_PLOTS = (
    ("process-", "rate", "concurrency", "processing by concurrency, one process", "jobs/s"),
    ("depth-", "beside_shallow", "jobs waiting", "speed compared with 1,000 jobs waiting", ""),
    ("payload-", "rate", "bytes of payload", "processing by payload", "jobs/s"),
)


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes every plot for which there are results; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for mode in MODES:
        for workload, metric, title, unit in BAR_PLOTS:
            rows = _bars_of(results, persisted_name(workload, mode), metric)
            if len(rows) > 1:
                name = workload if metric == "rate" else f"{workload}-{metric.replace('_', '-')}"
                drawing = bars(_titled(title, mode), unit, rows)
                written.append(_write(folder / f"{persisted_name(name, mode)}.svg", drawing))
        for prefix, metric, across, title, unit in LINE_PLOTS:
            series = _series(results, prefix, metric, mode)
            if any(len(points) > 1 for points in series.values()):
                name = persisted_name(f"by-{prefix.strip('-')}", mode)
                written.append(
                    _write(folder / f"{name}.svg", lines(_titled(title, mode), across, unit, series))
                )
    return written


def _titled(title: str, mode: Persistence) -> str:
    return title if mode == "none" else f"{title}, {LABELS[mode]}"


def _bars_of(results: Results, workload: str, metric: str) -> list[Bar]:
    return [
        Bar(CONTENDERS[name].label, one.median, one.low, one.high, name.startswith("toril"))
        for name, summaries in results.get(workload, {}).items()
        if (one := summaries.get(metric)) is not None
    ]


def _series(
    results: Results, prefix: str, metric: str, mode: Persistence
) -> dict[str, list[tuple[float, float]]]:
    """Returns the lines of contenders that were measured at every size, toril first."""
    shape = re.compile(persisted_name(rf"{prefix}(\d+)", mode))
    sizes = {workload: int(size[1]) for workload in results if (size := shape.fullmatch(workload))}
    workloads = sorted(sizes, key=lambda workload: sizes[workload])
    shown = ("toril", "node-5", "node-6", "bullmq-py", "dramatiq", "saq", "huey")
    series = {}
    for name in shown:
        found = [(workload, results[workload].get(name, {}).get(metric)) for workload in workloads]
        points = [(float(sizes[workload]), one.median) for workload, one in found if one is not None]
        if points and len(points) == len(workloads):
            series[CONTENDERS[name].label] = points
    return series


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
