"""Clocks that a test sets."""

from __future__ import annotations


class SetClock:
    """Shows the time that was set."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class SteppedClock:
    """Shows the next of some times whenever it is read."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def monotonic(self) -> float:
        return next(self._times)

    def time(self) -> float:
        return next(self._times)
