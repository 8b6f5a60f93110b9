"""Plots as SVG text: stacked bars and lines over time, without any library.

Guarantee: whatever the values are, the picture is valid SVG, and every text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 28
_INNER_W, _INNER_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one layer of bars: a name, a colour class of the page, and a value (or None) for each time."""

    name: str
    kind: str
    values: Sequence[float | None]
    dashed: bool = False


def stacked_bars(times: Sequence[datetime], series: Sequence[Series], unit: str, seconds: int) -> str:
    """Layers on top of each other; a bar covers its span of time."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(times))]
    scale = _Scale.linear(max(totals, default=0))
    x_of = _time_axis(times, seconds)
    width = max(1.0, _INNER_W * seconds / _length(times, seconds) - 0.6)
    parts = [_frame(scale, times, seconds, unit)]
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
    return _svg(parts)


def lines(times: Sequence[datetime], series: Sequence[Series], unit: str, seconds: int) -> str:
    """Lines on a logarithmic scale: a median of milliseconds and an outlier of minutes are both readable."""
    values = [value for one in series for value in one.values if value is not None and value > 0]
    scale = _Scale.logarithmic(min(values, default=1.0), max(values, default=10.0))
    x_of = _time_axis(times, seconds)
    parts = [_frame(scale, times, seconds, unit)]
    for one in series:
        parts += _polylines(one, times, x_of, scale, seconds, unit)
    return _svg(parts)


def _polylines(
    one: Series, times: Sequence[datetime], x_of: _Place, scale: _Scale, seconds: int, unit: str
) -> list[str]:
    found: list[str] = []
    run: list[str] = []
    half = _INNER_W * seconds / _length(times, seconds) / 2
    for moment, value in zip(times, one.values, strict=True):
        if value is None:
            found += _line(one, run)
            run = []
            continue
        x, y = x_of(moment) + half, scale.y(max(value, scale.low))
        run.append(f"{x:.1f},{y:.1f}")
        tip = f"{_clock(moment, seconds)} — {one.name}: {_short(value)} {unit}"
        found.append(
            f'<circle class="dot {one.kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"><title>{escape(tip)}</title></circle>'
        )
    return found + _line(one, run)


def _line(one: Series, points: Sequence[str]) -> list[str]:
    dash = ' stroke-dasharray="4 3"' if one.dashed else ""
    return (
        [f'<polyline class="line {one.kind}" points="{" ".join(points)}"{dash}/>'] if len(points) > 1 else []
    )


# --- axes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    @classmethod
    def linear(cls, highest: float) -> _Scale:
        step = _nice(max(highest, 1.0) / 4)
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


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return float(next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * 0.999))


class _Place:
    """Where a moment lies on the time axis."""

    def __init__(self, start: datetime, length: float) -> None:
        self.start = start
        self.length = length

    def __call__(self, moment: datetime) -> float:
        return _LEFT + _INNER_W * (moment - self.start).total_seconds() / self.length


def _length(times: Sequence[datetime], seconds: int) -> float:
    return (times[-1] - times[0]).total_seconds() + seconds if times else float(seconds)


def _time_axis(times: Sequence[datetime], seconds: int) -> _Place:
    return _Place(times[0] if times else datetime.fromtimestamp(0, UTC), _length(times, seconds))


def _frame(scale: _Scale, times: Sequence[datetime], seconds: int, unit: str) -> str:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    x_of = _time_axis(times, seconds)
    for index in sorted({round(n * (len(times) - 1) / 5) for n in range(6)}) if times else []:
        x = min(max(x_of(times[index]), _LEFT + 14), WIDTH - _RIGHT - 16)
        label = _clock(times[index], seconds)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 9}" text-anchor="middle">{label}</text>')
    parts.append(f'<text class="unit" x="{_LEFT}" y="9">{escape(unit)}</text>')
    return "".join(parts)


def _clock(moment: datetime, seconds: int) -> str:
    return moment.strftime("%H:%M" if seconds < 3600 else "%d %b %H:%M")


def _short(value: float) -> str:
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.4g}"


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
