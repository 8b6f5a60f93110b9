"""Plots as SVG text: stacked bars, bands and strips over time, without any library.

Guarantee: whatever the values are, the picture is valid SVG, and every text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 440
HEIGHT: Final = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 26
_DAY: Final = 86_400
_MOST_TICKS: Final = 6.5  # labels of times that fit side by side
_HATCH: Final = 7  # pixels between two slanting lines
_STEPS: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY, 2 * _DAY, 3 * _DAY)
# Longer times are labelled by whole days.
_INNER_W, _INNER_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one layer of bars: a name, a colour class of the page, and a value (or None) for each time."""

    name: str
    kind: str
    values: Sequence[float | None]


Alarms = Collection[datetime]  # beginnings of the spans in which an alert stood
Unknown = Collection[datetime]  # beginnings of the spans of which events are missing


def stacked_bars(
    times: Sequence[datetime],
    series: Sequence[Series],
    seconds: int,
    alarms: Alarms = (),
    unknown: Unknown = (),
    beside: Collection[float] = (),
) -> str:
    """Layers on top of each other; a bar covers its span of time. Values of a plot `beside` fit on the scale, too."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(times))]
    scale = _Scale.linear(max((*totals, *beside), default=0))
    x_of = _time_axis(times, seconds)
    span = _INNER_W * seconds / _length(times, seconds)
    width = max(1.0, span - max(0.6, span * 0.08))
    parts = [_frame(scale, times, seconds), _alarm_marks(alarms, x_of, times, seconds)]
    parts.append(_unknown_marks(unknown, x_of, times, seconds))
    for at, moment in enumerate(times):
        base = 0.0
        for one in series:
            value = one.values[at] or 0.0
            if value <= 0:
                continue
            top, bottom = scale.y(base + value), scale.y(base)
            tip = f"{_clock(moment, seconds)} — {one.name}: {_short(value)}"
            parts.append(
                f'<rect class="{one.kind}" x="{x_of(moment):.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{max(bottom - top, 0.5):.1f}"><title>{escape(tip)}</title></rect>'
            )
            base += value
    return _svg(parts, series)


def bands(
    times: Sequence[datetime],
    percentiles: Sequence[Series],
    unit: str,
    seconds: int,
    alarms: Alarms = (),
    unknown: Unknown = (),
    beside: Collection[float] = (),
) -> str:
    """From the lowest percentile to the highest as an area, the middle one as a line, on a logarithmic scale.

    Values of a plot `beside` fit on the scale, too.
    """
    low, middle, high = percentiles
    values = [*beside, *(value for one in percentiles for value in one.values if value is not None)]
    known = [value for value in values if value > 0]
    scale = _Scale.logarithmic(min(known, default=1.0), max(known, default=10.0))
    x_of = _time_axis(times, seconds)
    half = _INNER_W * seconds / _length(times, seconds) / 2
    parts = [_frame(scale, times, seconds), _alarm_marks(alarms, x_of, times, seconds)]
    parts.append(_unknown_marks(unknown, x_of, times, seconds))
    for run in _runs(middle.values):
        places = [(x_of(times[at]) + half, at) for at in run]
        upper = [f"{x:.1f},{scale.y(high.values[at] or 0):.1f}" for x, at in places]
        lower = [f"{x:.1f},{scale.y(low.values[at] or 0):.1f}" for x, at in reversed(places)]
        centre = [f"{x:.1f},{scale.y(middle.values[at] or 0):.1f}" for x, at in places]
        # One moment alone has no width: it is drawn a little wider than it is.
        if len(run) == 1:
            x = places[0][0]
            top, bottom = scale.y(high.values[run[0]] or 0), scale.y(low.values[run[0]] or 0)
            box = f'x="{x - 3:.1f}" width="6" y="{top:.1f}" height="{max(bottom - top, 1):.1f}"'
            parts.append(f'<rect class="band {middle.kind}" {box}/>')
        parts.append(f'<polygon class="band {middle.kind}" points="{" ".join([*upper, *lower])}"/>')
        parts.append(f'<polyline class="line {middle.kind}" points="{" ".join(centre)}"/>')
        parts += [_tip(percentiles, times[at], at, x, unit, seconds) for x, at in places]
    return _svg(parts, percentiles)


def _tip(percentiles: Sequence[Series], moment: datetime, at: int, x: float, unit: str, seconds: int) -> str:
    """An invisible column with the values as its tooltip."""
    values = ", ".join(f"{one.name} {_short(one.values[at] or 0)}" for one in percentiles)
    words = escape(f"{_clock(moment, seconds)} — {values} {unit}")
    return f'<rect class="tip" x="{x - 3:.1f}" y="{_TOP}" width="6" height="{_INNER_H}"><title>{words}</title></rect>'


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Stretches of known values."""
    runs: list[list[int]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            runs[-1].append(at)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _alarm_marks(alarms: Alarms, x_of: _TimeAxis, times: Sequence[datetime], seconds: int) -> str:
    """Spans of time in which something was wrong, as a shade behind the plot."""
    width = _INNER_W * seconds / _length(times, seconds)
    inside = sorted({moment for moment in alarms if times and times[0] <= moment <= times[-1]})
    return "".join(
        f'<rect class="alarm" x="{x_of(moment):.1f}" y="{_TOP}" width="{width + 0.3:.1f}" height="{_INNER_H}"/>'
        for moment in inside
    )


def _unknown_marks(unknown: Unknown, x_of: _TimeAxis, times: Sequence[datetime], seconds: int) -> str:
    """Spans of time in which events are missing, hatched: the plot is incomplete there."""
    width = _INNER_W * seconds / _length(times, seconds)
    concerned = set(unknown)
    runs = _runs([1.0 if moment in concerned else None for moment in times])
    return "".join(_hatched(x_of(times[run[0]]), _TOP, width * len(run), _INNER_H) for run in runs)


def _hatched(x: float, y: float, width: float, height: float) -> str:
    """A box of slanting lines, cut off at its edges."""
    lines = []
    for start in range(-int(height), int(width) + 1, _HATCH):
        low, high = max(0.0, -start), min(height, width - start)
        if low < high:
            first, last = (f"{x + start + at:.1f} {y + height - at:.1f}" for at in (low, high))
            lines.append(f"M{first}L{last}")
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    tip = "<title>unknown: events were lost before they were read</title>"
    return f'<g class="unknown"><rect {box}>{tip}</rect><path d="{"".join(lines)}"/></g>'


def sparkline(series: Sequence[Series], *, columns: int = 60, unknown: Sequence[bool] = ()) -> str:
    """The same layers without axes, small enough for a line of a table."""
    width, height = 180, 30
    size = max((len(one.values) for one in series), default=0)
    step = max(1, math.ceil(size / columns))
    sums = [
        [sum(value or 0 for value in one.values[at : at + step]) for at in range(0, size, step)]
        for one in series
    ]
    highest = max((sum(column) for column in zip(*sums, strict=True)), default=0) or 1
    runs = _runs([1.0 if one else None for one in unknown])
    parts = [_hatched(run[0] * width / size, 0, len(run) * width / size, height) for run in runs if size]
    for at, column in enumerate(zip(*sums, strict=True)):
        top = float(height)
        for one, value in zip(series, column, strict=True):
            tall = height * value / highest
            top -= tall
            if value:
                box = f'x="{at * width * step / size:.1f}" y="{top:.1f}" height="{max(tall, 0.7):.1f}"'
                parts.append(f'<rect class="{one.kind}" {box} width="{width * step / size * 0.85:.1f}"/>')
    return f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" {_label(series)}>{"".join(parts)}</svg>'


def timeline(start: datetime, end: datetime, marks: Sequence[datetime], seconds: int) -> str:
    """A strip of time with the spans marked."""
    width, height = 640, 14
    length = max((end - start).total_seconds(), 1.0) + seconds
    parts = [f'<rect class="track" width="{width}" height="{height}" rx="3"/>']
    for moment in sorted(set(marks)):
        x = width * (moment - start).total_seconds() / length
        wide = max(width * seconds / length, 3)
        tip = escape(f"{moment:%d %b %H:%M}")
        parts.append(
            f'<rect class="alarm-mark" x="{x:.1f}" width="{wide:.1f}" height="{height}"><title>{tip}</title></rect>'
        )
    box = f'viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
    return f'<svg class="strip" {box} role="img" aria-label="times of the alert">{"".join(parts)}</svg>'


# --- axes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    @classmethod
    def linear(cls, highest: float) -> _Scale:
        step = max(1.0, _round_step(max(highest, 1.0) / 4))  # what is counted is whole
        top = step * max(1, math.ceil(max(highest, 1.0) / step))
        return cls(low=0.0, high=top, log=False, ticks=[step * n for n in range(round(top / step) + 1)])

    @classmethod
    def logarithmic(cls, lowest: float, highest: float) -> _Scale:
        first, last = math.floor(math.log10(max(lowest, 0.1))), math.ceil(math.log10(max(highest, 1.0)))
        last = max(last, first + 1)
        return cls(
            low=10.0**first, high=10.0**last, log=True, ticks=[10.0**n for n in range(first, last + 1)]
        )

    def y(self, value: float) -> float:
        if self.log:
            share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            share = value / self.high
        return _TOP + _INNER_H * (1 - min(max(share, 0.0), 1.0))


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return float(next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * 0.999))


class _TimeAxis:
    """Where a moment lies on the time axis."""

    def __init__(self, start: datetime, length: float) -> None:
        self.start = start
        self.length = length

    def __call__(self, moment: datetime) -> float:
        return _LEFT + _INNER_W * (moment - self.start).total_seconds() / self.length


def _length(times: Sequence[datetime], seconds: int) -> float:
    return (times[-1] - times[0]).total_seconds() + seconds if times else float(seconds)


def _time_axis(times: Sequence[datetime], seconds: int) -> _TimeAxis:
    return _TimeAxis(times[0] if times else datetime.fromtimestamp(0, UTC), _length(times, seconds))


def _frame(scale: _Scale, times: Sequence[datetime], seconds: int) -> str:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    x_of = _time_axis(times, seconds)
    for moment, label in _time_ticks(times, seconds):
        x = min(x_of(moment), WIDTH - _RIGHT - 14)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 9}" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _time_ticks(times: Sequence[datetime], seconds: int) -> list[tuple[datetime, str]]:
    """Round moments at equal distances, and their names: hours, or the day where it begins."""
    if not times:
        return []
    length = _length(times, seconds)
    step = next(
        (one for one in _STEPS if length / one <= _MOST_TICKS), math.ceil(length / _MOST_TICKS / _DAY) * _DAY
    )
    first = math.ceil(times[0].timestamp() / step) * step
    moments = [
        datetime.fromtimestamp(at, UTC) for at in range(first, math.ceil(times[0].timestamp() + length), step)
    ] or [times[0]]
    return [(one, one.strftime("%d %b" if one.timestamp() % _DAY == 0 else "%H:%M")) for one in moments]


def _clock(moment: datetime, seconds: int) -> str:
    return moment.strftime("%H:%M" if seconds < 3600 else "%d %b %H:%M")


def _short(value: float) -> str:
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.4g}"


def _svg(parts: Sequence[str], series: Sequence[Series]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {_label(series)}>{"".join(parts)}</svg>'


def _label(series: Sequence[Series]) -> str:
    """Returns what a plot is called where it cannot be seen."""
    return f'aria-label="{escape(", ".join(one.name for one in series))} over time"'
