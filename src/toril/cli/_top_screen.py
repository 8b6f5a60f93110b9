"""The picture of `toril top`, drawn for a screen of any size.

Guarantee: a row is one line, and a picture is never higher than its screen: where there is no room for all rows, each
part shows as many as fit, and lists of queues and workers say of how many.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from toril.cli._output import seconds, shortened
from toril.observe.overview import Glance, QueueFigures

T = TypeVar("T")

SLOWEST = 5
NEWEST_FAILURES = 5
SVG_WIDTH = 132
NARROW = 100  # columns, below which headings are short and words stand close together


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job worth a line."""

    queue: str
    job_id: str
    name: str
    seconds: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What one look has shown."""

    glance: Glance
    rates: dict[str, dict[str, float]]  # queue → completed, failed, events in a second
    slowest: list[JobLine]
    failing: list[JobLine]


@dataclass(frozen=True, slots=True)
class _Part:
    """One table of the picture; only the columns up to `words` hold text, the others numbers."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    words: int
    is_choice: bool = False  # a few out of many anyway
    last_is_text: bool = False


def drawn(picture: Picture, width: int, height: int | None = None) -> RenderableType:
    """The picture for people; without a height, all of it."""
    narrow = width < NARROW
    parts = [
        _queues(picture, narrow=narrow),
        _workers(picture, narrow=narrow),
        _slowest(picture, narrow=narrow),
        _failing(picture, narrow=narrow),
    ]
    parts = [one for one in parts if one.rows or one is parts[0]]
    while height is not None and len(parts) > 1 and height - 2 - 3 * len(parts) < len(parts):
        parts.pop()  # headings alone say nothing
    wanted = [len(one.rows) for one in parts]
    # Each part has an empty line, its headings and a rule; the first line is the title, the last stays free.
    room = sum(wanted) if height is None else height - 2 - 3 * len(parts)
    lines: list[RenderableType] = [_title(picture)]
    for part, count in zip(parts, _shared(wanted, room), strict=True):
        lines += [Text(), _table(part, count, narrow=narrow)]
    return Group(*lines)


def painted(picture: Picture) -> str:
    """The picture as an SVG that needs no fonts from elsewhere."""
    screen = Console(record=True, width=SVG_WIDTH, file=io.StringIO(), markup=False, highlight=False)
    screen.print(drawn(picture, SVG_WIDTH))
    return re.sub(
        r"@font-face\s*\{[^}]*\}|<!--.*?-->", "", screen.export_svg(title="toril top"), flags=re.DOTALL
    )


def _shared(wanted: Sequence[int], room: int) -> list[int]:
    """How many rows each part gets: one after the other in turn, until all are content or there is no room."""
    given = [0] * len(wanted)
    while room > 0 and given != list(wanted):
        for at, most in enumerate(wanted):
            if given[at] < most and room > 0:
                given[at] += 1
                room -= 1
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
    if count < len(part.rows) and not part.is_choice:
        first = f"{first} ({count} of {len(part.rows)})"
    for at, column in enumerate((first, *others)):
        is_last_text = part.last_is_text and at == len(others)
        made.add_column(
            column,
            justify="left" if at < part.words or is_last_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_last_text else None,
        )
    for row in part.rows[:count]:
        made.add_row(*(Text(shortened(cell)) for cell in row))
    return made


def _title(picture: Picture) -> Text:
    queues = picture.glance.queues
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
    for one in sorted(picture.glance.queues, key=_calm):
        rates = picture.rates.get(one.label, {})
        completed = getattr(one.overview, "totals", {}).get("completed", one.states.get("completed", 0))
        numbers = (
            one.ready,
            *(one.states.get(state, 0) for state in ("active", "delayed", "failed")),
            completed,
        )
        speeds = [f"{rates.get(name, 0.0):.1f}" for name in ("completed", "failed", "events")]
        oldest = seconds(one.oldest_waiting) if one.ready else "·"
        name = _cut(one.label, 18 if narrow else 48)
        name = f"{name} (paused)" if one.paused else name
        rows.append((name, *numbers, *(speeds[:2] if narrow else speeds), oldest))
    return _Part(columns, rows, 1)


def _calm(figures: QueueFigures) -> tuple[bool, str, str]:
    """Queues where nothing waits and nothing runs come last."""
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
        for one in picture.glance.queues
        for report in one.workers
    ]
    return _Part(columns, rows, 3)


def _megabytes(value: Any) -> str:
    return f"{value / 2**20:.0f} MB" if isinstance(value, (int, float)) else "?"


def _slowest(picture: Picture, *, narrow: bool) -> _Part:
    cut = _cutter(12 if narrow else 32)
    rows = [(cut(one.queue), one.job_id, cut(one.name), seconds(one.seconds)) for one in picture.slowest]
    return _Part(("slowest in", "job", "name", "runs for"), rows, 3, is_choice=True)


def _failing(picture: Picture, *, narrow: bool) -> _Part:
    cut = _cutter(10 if narrow else 32)
    rows = [
        (cut(one.queue), one.job_id, cut(one.name), seconds(one.seconds), one.text) for one in picture.failing
    ]
    return _Part(("failed in", "job", "name", "ago", "why"), rows, 3, is_choice=True, last_is_text=True)


def _cutter(limit: int) -> Callable[[str], str]:
    return lambda text: _cut(text, limit)


def _cut(text: str, limit: int) -> str:
    return shortened(text, limit)
