"""The layout of `toril top` for terminals of any size.

Guarantee: a row is one line, and a picture is never higher than the terminal: if not all rows fit, each part shows some
of them, and the parts for queues and workers show the total number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from toril.cli._output import format_seconds, shorten
from toril.observe.overview import QueueFigures, ServerOverview

T = TypeVar("T")

SLOWEST = 5
NEWEST_FAILURES = 5
SVG_WIDTH = 132
NARROW = 100  # columns, below which headings are short and columns have no space between them


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job that is shown in one line."""

    queue: str
    job_id: str
    name: str
    seconds: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The figures of one point in time."""

    overview: ServerOverview
    rates: dict[str, dict[str, float]]  # queue → completed, failed, events per second
    slowest: list[JobLine]
    failing: list[JobLine]


@dataclass(frozen=True, slots=True)
class _Part:
    """One table of the picture; the first `text_columns` columns are text, the others numbers."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    text_columns: int
    is_selection: bool = False  # only the first rows of many by definition
    last_is_text: bool = False


def render(picture: Picture, width: int, height: int | None = None) -> RenderableType:
    """Returns the picture; without a height, all rows."""
    narrow = width < NARROW
    parts = [
        _queues(picture, narrow=narrow),
        _workers(picture, narrow=narrow),
        _slowest(picture, narrow=narrow),
        _failing(picture, narrow=narrow),
    ]
    parts = [one for one in parts if one.rows or one is parts[0]]
    while height is not None and len(parts) > 1 and height - 2 - 3 * len(parts) < len(parts):
        parts.pop()  # a part needs at least one row
    wanted = [len(one.rows) for one in parts]
    # Each part has an empty line, its headings and a rule; the first line is the title, the last is empty.
    free = sum(wanted) if height is None else height - 2 - 3 * len(parts)
    lines: list[RenderableType] = [_title(picture)]
    for part, count in zip(parts, _divide_rows(wanted, free), strict=True):
        lines += [Text(), _table(part, count, narrow=narrow)]
    return Group(*lines)


def render_svg(picture: Picture) -> str:
    """Returns the picture as an SVG that loads no fonts."""
    screen = Console(record=True, width=SVG_WIDTH, file=io.StringIO(), markup=False, highlight=False)
    screen.print(render(picture, SVG_WIDTH))
    return re.sub(
        r"@font-face\s*\{[^}]*\}|<!--.*?-->", "", screen.export_svg(title="toril top"), flags=re.DOTALL
    )


def _divide_rows(wanted: Sequence[int], free: int) -> list[int]:
    """Returns the number of rows of each part: one row is given to each in turn, as long as there are free lines."""
    given = [0] * len(wanted)
    while free > 0 and given != list(wanted):
        for at, maximum in enumerate(wanted):
            if given[at] < maximum and free > 0:
                given[at] += 1
                free -= 1
    return given


def _table(part: _Part, count: int, *, narrow: bool) -> Table:
    made = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        expand=part.last_is_text,
        padding=(0, 0) if narrow else (0, 1),
    )
    first, *others = part.columns
    if count < len(part.rows) and not part.is_selection:
        first = f"{first} ({count} of {len(part.rows)})"
    for at, column in enumerate((first, *others)):
        is_last_text = part.last_is_text and at == len(others)
        made.add_column(
            column,
            justify="left" if at < part.text_columns or is_last_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_last_text else None,
        )
    for row in part.rows[:count]:
        made.add_row(*(Text(shorten(cell)) for cell in row))
    return made


def _title(picture: Picture) -> Text:
    queues = picture.overview.queues
    ready, active = sum(one.ready for one in queues), sum(one.states.get("active", 0) for one in queues)
    done = sum(rates.get("completed", 0.0) for rates in picture.rates.values())
    text = Text("toril top", style="bold", no_wrap=True, overflow="ellipsis")
    text.append(
        f"  {len(queues)} queues  {ready} ready  {active} active  {done:.0f} completed/s", style="not bold"
    )
    return text


def _queues(picture: Picture, *, narrow: bool) -> _Part:
    columns: tuple[str, ...] = (
        "queue",
        "ready",
        "active",
        "delayed",
        "failed",
        "completed",
        "done/s",
        "failed/s",
    )
    columns += ("oldest",) if narrow else ("events/s", "oldest")
    rows = []
    for one in sorted(picture.overview.queues, key=_sort_key):
        rates = picture.rates.get(one.label, {})
        completed = one.totals.get("completed", one.states.get("completed", 0))
        numbers = (
            one.ready,
            *(one.states.get(state, 0) for state in ("active", "delayed", "failed")),
            completed,
        )
        speeds = [f"{rates.get(name, 0.0):.1f}" for name in ("completed", "failed", "events")]
        oldest = format_seconds(one.oldest_waiting) if one.ready else "·"
        name = _cut(one.label, 18 if narrow else 48)
        name = f"{name} (paused)" if one.paused else name
        rows.append((name, *numbers, *(speeds[:2] if narrow else speeds), oldest))
    return _Part(columns, rows, 1)


def _sort_key(figures: QueueFigures) -> tuple[bool, str, str]:
    """Sorts idle queues last."""
    return not (figures.ready or figures.states.get("active", 0)), figures.queue.kind, figures.label


def _workers(picture: Picture, *, narrow: bool) -> _Part:
    columns = (
        "worker",
        "queue",
        "state",
        "jobs",
        "done",
        "failed",
        "missed" if narrow else "beats missed",
        "memory",
    )
    rows = [
        (
            _cut(str(report.get("worker", "?")), 24 if narrow else 48),
            _cut(one.label, 12 if narrow else 32),
            report.get("state", "?"),
            f"{report.get('jobs', 0)}/{report.get('concurrency', '?')}",
            report.get("processed", 0),
            report.get("failed", 0),
            report.get("heartbeats_failed", 0),
            _megabytes(report.get("memory")),
        )
        for one in picture.overview.queues
        for report in one.workers
    ]
    return _Part(columns, rows, 3)


def _megabytes(value: object) -> str:
    return f"{value / 2**20:.0f} MB" if isinstance(value, (int, float)) else "?"


def _slowest(picture: Picture, *, narrow: bool) -> _Part:
    cut = _cutter(12 if narrow else 32)
    rows = [
        (cut(one.queue), one.job_id, cut(one.name), format_seconds(one.seconds)) for one in picture.slowest
    ]
    return _Part(("slowest in", "job", "name", "runs for"), rows, 3, is_selection=True)


def _failing(picture: Picture, *, narrow: bool) -> _Part:
    cut = _cutter(10 if narrow else 32)
    rows = [
        (cut(one.queue), one.job_id, cut(one.name), format_seconds(one.seconds), one.text)
        for one in picture.failing
    ]
    return _Part(("failed in", "job", "name", "ago", "why"), rows, 3, is_selection=True, last_is_text=True)


def _cutter(limit: int) -> Callable[[str], str]:
    return lambda text: _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return shorten(text, limit)
