"""Limits the log lines about jobs without a handler for their name: one for each name and minute.

Guarantee: bounded memory: beyond a hundred names in a minute, the others share a line.
"""

from __future__ import annotations

import time

from toril.protocol.clock import Clock

SECONDS_BETWEEN_LINES = 60.0
MOST_NAMES = 100
OTHER_NAMES = "(other names)"


class UnknownNameLines:
    """Counts refusals by name, and decides when a line is due."""

    def __init__(self, clock: Clock = time) -> None:
        self._clock = clock
        self._next_line_at: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}  # refusals since the last line

    def due(self, name: str, count: int = 1) -> tuple[str, int] | None:
        """Counts refusals. Returns the name and count to log, or None when it is too early for a line."""
        now = self._clock.monotonic()
        name = self._entry(name, now)
        self._unlogged[name] = count = self._unlogged.get(name, 0) + count
        if now < self._next_line_at.get(name, now):
            return None
        self._next_line_at[name] = now + SECONDS_BETWEEN_LINES
        self._unlogged[name] = 0
        return name, count

    def _entry(self, name: str, now: float) -> str:
        if name in self._next_line_at or len(self._next_line_at) < MOST_NAMES:
            return name
        for old in [one for one, until in self._next_line_at.items() if until <= now]:
            del self._next_line_at[old], self._unlogged[old]
        return name if len(self._next_line_at) < MOST_NAMES else OTHER_NAMES
