"""Brings back jobs that died with their worker.

Guarantee: one sweep at a time; a sweep that is due while one still runs is skipped and counted; none begins right after
an outage, when the locks of living workers may have run out as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from toril.backends.base import Source
from toril.worker._service import Report, Service

# A sweep that takes this many intervals does not come to an end.
STUCK_AFTER = 3


class StalledSweeper(Service):
    """Asks the source to sweep, every interval, and tells what came back."""

    def __init__(
        self,
        source: Source,
        *,
        interval: float,
        on_stalled: Callable[[Sequence[str]], Any],
        on_skipped: Callable[[], Any],
        on_error: Report,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(interval=interval, on_error=on_error)
        self._source = source
        self._on_stalled = on_stalled
        self._on_skipped = on_skipped
        self._may_begin = may_begin
        self._sweep: asyncio.Task[None] | None = None
        self._skipped_in_a_row = 0
        self.done = 0
        self.skipped = 0

    @property
    def on_time(self) -> bool:
        """Whether sweeps begin when they are due, and end before the next ones."""
        return super().on_time and self._skipped_in_a_row < STUCK_AFTER

    async def round(self) -> None:
        if self._sweep is not None and not self._sweep.done():
            self.skipped += 1
            self._skipped_in_a_row += 1
            self._on_skipped()
            return
        self._skipped_in_a_row = 0
        if self._may_begin():
            self._sweep = asyncio.create_task(self._run(), name="toril-sweep")

    async def _run(self) -> None:
        try:
            stalled = await self._source.sweep()
        except Exception as error:  # noqa: BLE001  # the next sweep may succeed
            self._on_error(error)
            return
        if stalled is not None:
            self.done += 1
            if stalled:
                self._on_stalled(stalled)

    async def stop(self) -> None:
        await super().stop()
        if self._sweep is not None:
            await self._sweep
