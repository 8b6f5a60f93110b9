"""The clock that a class reads, so that a test can give it another one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What is used of the module `time`, which is the default clock."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def time(self) -> float:
        """Seconds since the epoch."""
