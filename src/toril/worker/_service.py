"""`Service`: a background loop of a worker.

Guarantee: `start` and `stop` may be called twice; an error in one round is reported and the next round follows; after
`stop` returns, the loop has ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

from toril.transport.waiting import waited

# A round may take this long beyond its interval before the service counts as stuck: longer than a slow reply.
GRACE_SECONDS = 15.0


class Service(ABC):
    """Calls `round()` every `interval` seconds, the first time at once."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._round_at = time.monotonic()

    @property
    def on_time(self) -> bool:
        """Whether the loop runs and had its last round when it was due, or not long after."""
        late = time.monotonic() - self._round_at
        return self._task is not None and not self._task.done() and late < self._interval * 2 + GRACE_SECONDS

    @abstractmethod
    async def round(self) -> None:
        """One round of the service's work."""

    @abstractmethod
    def on_error(self, error: BaseException) -> None:
        """Reports the error of a round."""

    def start(self) -> None:
        if self._task is None:
            self._stop.clear()
            self._round_at = time.monotonic()
            self._task = asyncio.create_task(self._loop(), name=f"toril-{type(self).__name__}")

    async def stop(self) -> None:
        """Ends the loop after the current round."""
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            await task

    async def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001  # a round may fail in any way; the service must not
                self.on_error(error)
            self._round_at = time.monotonic()
            await waited(self._interval, self._stop)
