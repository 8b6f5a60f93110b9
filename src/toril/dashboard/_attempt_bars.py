"""The attempts of a job as bars on one axis of time: how long each waited and ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from toril.dashboard._texts import span_ms

WIDTH: Final = 1000
# So that a run of a millisecond in a day can be seen.
LEAST_WIDTH: Final = 4.0

_BAR: Final = Markup(
    '<svg class="timeline" viewBox="0 0 {} 14" preserveAspectRatio="none" role="img" aria-label="{}"><title>{}</title>'
    '<rect class="wait" x="{}" width="{}" height="14"/><rect class="run" x="{}" width="{}" height="14"/></svg>'
)


def attempt_bars(attempts: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Markup]]:
    """Returns each attempt with its bar; all bars have the same axis."""
    times = [_times(one) for one in attempts]
    first = min((ready for ready, _, _ in times), default=0.0)
    length = max((ended for _, _, ended in times), default=0.0) - first or 1.0
    return [(one, _bar(*at, first, WIDTH / length)) for one, at in zip(attempts, times, strict=True)]


def _times(attempt: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns when an attempt became ready, started and ended, in Unix milliseconds."""
    ended = attempt["ended_at"].timestamp() * 1000
    started = ended - (attempt.get("run_ms") or 0)
    return started - (attempt.get("wait_ms") or 0), started, ended


def _bar(ready: float, started: float, ended: float, first: float, scale: float) -> Markup:
    words = f"waited {span_ms(started - ready)}, ran {span_ms(ended - started)}"
    run = max(LEAST_WIDTH, (ended - started) * scale)
    at = min((started - first) * scale, WIDTH - run)
    begin = (ready - first) * scale
    return _BAR.format(
        WIDTH, words, words, f"{begin:.1f}", f"{max(0.0, at - begin):.1f}", f"{at:.1f}", f"{run:.1f}"
    )
