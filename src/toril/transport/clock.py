"""The server's time, estimated from its replies.

Guarantee: the time does not depend on the wall clock of this machine, which may be wrong or jump: delays and timestamps
are the server's, to within half a round trip.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

# Quartz drifts by some 50 ppm: 3 ms in a minute.
REFRESH_SECONDS = 60.0
# The reply with the shortest round trip is the most exact; at least one in three is seldom delayed.
SAMPLES = 3


class ServerClock:
    """The offset between this machine's monotonic clock and the server's time."""

    __slots__ = ("_asked_at", "_offset")

    shift: ClassVar[float] = 0.0  # seconds, of all clocks of this process: tests move the time by it

    def __init__(self) -> None:
        self._offset: float | None = None
        self._asked_at = 0.0

    @property
    def stale(self) -> bool:
        """Whether the server should be asked again."""
        return self._offset is None or time.monotonic() - self._asked_at > REFRESH_SECONDS

    def learn_best(self, samples: Sequence[tuple[float, float, float]]) -> None:
        """Takes the sample (server's time, sent at, received at) with the shortest round trip."""
        self.learn(*min(samples, key=lambda sample: sample[2] - sample[1]))

    def learn(self, server_seconds: float, sent_at: float, received_at: float) -> None:
        """Takes the server's time, assumed to be read half-way between sending and receiving (monotonic clock)."""
        self._offset = server_seconds - (sent_at + received_at) / 2
        self._asked_at = received_at

    def now(self) -> float:
        """Returns seconds since the epoch."""
        if self._offset is None:
            return time.time() + ServerClock.shift
        return time.monotonic() + self._offset + ServerClock.shift

    def now_ms(self) -> int:
        return int(self.now() * 1000)
