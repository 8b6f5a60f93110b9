"""`Service`: what every background loop of a worker is.

Guarantee: start and stop may be called twice; an error in one round is reported and the next round comes all the same;
after `stop` returns, the loop has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from toril.transport.waiting import waited

# A round may take this long beyond its time before the service counts as stuck: longer than a slow reply.
GRACE = 15.0

Report = Callable[[BaseException], Any]


class Service:
    """Calls `round()` every `interval` seconds, the first time at once."""

    def __init__(self, *, interval: float, on_error: Report) -> None:
        self._interval = interval
        self._on_error = on_error
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._turned = time.monotonic()

    @property
    def on_time(self) -> bool:
        """Whether the loop lives and had its last round when it was due, or not long after."""
        late = time.monotonic() - self._turned
        return self._task is not None and not self._task.done() and late < self._interval * 2 + GRACE

    async def round(self) -> None:
        """One round of the service's work."""
        raise NotImplementedError

    def start(self) -> None:
        if self._task is None:
            self._stop.clear()
            self._turned = time.monotonic()
            self._task = asyncio.create_task(self._loop(), name=f"toril-{type(self).__name__}")

    async def stop(self) -> None:
        """Ends the loop after the round that runs now."""
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            await task

    async def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001  # a round may fail in any way; the service must not
                self._on_error(error)
            self._turned = time.monotonic()
            await waited(self._interval, self._stop)
