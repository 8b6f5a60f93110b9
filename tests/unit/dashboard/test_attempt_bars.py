"""The bars of attempts: one axis for all, whatever the times are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from toril.dashboard._attempt_bars import attempt_bars

ENDED = datetime(2026, 1, 1, tzinfo=UTC)
RECT = re.compile(r'class="(wait|run)" x="([\d.]+)" width="([\d.]+)"')


def rects(bar: str) -> dict[str, tuple[float, float]]:
    return {kind: (float(x), float(width)) for kind, x, width in RECT.findall(bar)}


def attempt(ended: float, wait_ms: float | None, run_ms: float | None) -> dict[str, Any]:
    return {"ended_at": ENDED + timedelta(seconds=ended), "wait_ms": wait_ms, "run_ms": run_ms}


def test_attempts_are_placed_on_one_axis() -> None:
    (_, first), (_, second) = attempt_bars([attempt(4, 2000, 2000), attempt(10, 1000, 5000)])
    assert rects(first) == {"wait": (0, 200), "run": (200, 200)}
    assert rects(second) == {"wait": (400, 100), "run": (500, 500)}
    assert 'aria-label="waited 2.0 s, ran 2.0 s"' in first


def test_a_short_run_can_be_seen_and_unknown_times_are_no_error() -> None:
    ((_, bar),) = attempt_bars([attempt(0, 86_400_000, 1)])
    assert rects(bar)["run"] == (996, 4)
    ((_, bar),) = attempt_bars([attempt(0, None, None)])
    assert rects(bar)["wait"][1] == 0
    assert attempt_bars([]) == []
