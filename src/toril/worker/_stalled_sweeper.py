"""Recovers jobs of dead workers.

Guarantee: one sweep at a time; a sweep that is due while one still runs is skipped and counted; none begins right after
an outage, when the locks of live workers may have expired as well.
"""

from __future__ import annotations

import asyncio
import time
from typing import Generic

from toril.backends.base import Backend, D
from toril.errors import Closed, RedisUnavailable
from toril.protocol.worker_options import WorkerOptions
from toril.worker._connection import Connection
from toril.worker._fetch_loop import FetchLoop
from toril.worker._lock_renewer import LockRenewer
from toril.worker._observer import WorkerObserver
from toril.worker._service import Service

# A sweep that takes this many intervals counts as stuck.
STUCK_AFTER = 3


class StalledSweeper(Service, Generic[D]):
    """Sweeps the queue at every interval, and reports the stalled jobs."""

    def __init__(
        self,
        backend: Backend[D],
        connection: Connection[D],
        fetch_loop: FetchLoop[D],
        lock_renewer: LockRenewer[D],
        observer: WorkerObserver[D],
        options: WorkerOptions,
    ) -> None:
        super().__init__(float(options.stalled_check_interval))
        self._backend = backend
        self._connection = connection
        self._fetch_loop = fetch_loop
        self._lock_renewer = lock_renewer
        self._observer = observer
        self._heartbeat = float(options.heartbeat_interval)
        self._lock_duration = float(options.lock_duration)
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
            self._observer.sweep_skipped()
            return
        self._skipped_in_a_row = 0
        if self.may_sweep():
            self._sweep = asyncio.create_task(self._run(), name="toril-sweep")

    def may_sweep(self) -> bool:
        """Whether expired locks mean dead workers: in an outage, the locks of live workers expire as well.

        The first heartbeat that succeeds renews this worker's locks; other workers have one interval for theirs.
        """
        now = time.monotonic()
        back_at = max(self._connection.restored_at, self._lock_renewer.recovered_at)
        renewer = self._lock_renewer
        if renewer.is_behind or self._connection.is_lost or now - back_at < self._heartbeat:
            return False
        if not self._fetch_loop.deliveries():
            return True
        if now - renewer.renewed_at < max(self._lock_duration, 1.5 * self._heartbeat):
            return True
        renewer.renew_soon()
        return False

    async def _run(self) -> None:
        try:
            stalled = await self._backend.sweep()
        except Exception as error:  # noqa: BLE001  # the next sweep may succeed
            self.on_error(error)
            return
        if stalled is not None:
            self.done += 1
            if stalled:
                self._observer.stalled(stalled)

    def on_error(self, error: BaseException) -> None:
        # An outage is reported by the connection, and a stop closes the connections of a sweep.
        if not isinstance(error, (RedisUnavailable, Closed)):
            self._observer.error(error)

    async def stop(self) -> None:
        await super().stop()
        if self._sweep is not None:
            await self._sweep
