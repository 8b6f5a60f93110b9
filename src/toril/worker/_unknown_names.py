"""When a worker writes a line about jobs whose names it has no handler for: once for each name and minute.

Guarantee: bounded memory, however many names producers make up: beyond a hundred in a minute they share a line.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 60.0
MOST_NAMES = 100
OTHER_NAMES = "(other names)"


class UnknownNameLines:
    """Counts refusals by name, and tells when a line is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}  # refusals since the last line

    def due(self, name: str) -> tuple[str, int] | None:
        """For one more refusal: the name and the number of refusals to write, or None when it is too early."""
        now = self._clock()
        name = self._entry(name, now)
        self._unsaid[name] = count = self._unsaid.get(name, 0) + 1
        if now < self._silent_until.get(name, now):
            return None
        self._silent_until[name] = now + SECONDS_BETWEEN_LINES
        self._unsaid[name] = 0
        return name, count

    def _entry(self, name: str, now: float) -> str:
        if name in self._silent_until or len(self._silent_until) < MOST_NAMES:
            return name
        for old in [one for one, until in self._silent_until.items() if until <= now]:
            del self._silent_until[old], self._unsaid[old]
        return name if len(self._silent_until) < MOST_NAMES else OTHER_NAMES
