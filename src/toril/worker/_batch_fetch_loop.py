"""Fetches the jobs of a worker whose handler takes batches.

Guarantee: jobs that wait for others to join their batch wait in the queue: no lock is held for them, and any other
worker may take them. A fetch is made when a batch may begin and the queue has enough ready jobs for it.
"""

from __future__ import annotations

import asyncio
import time

from toril.backends.base import Backend, D, Fetched, ReadyJobs
from toril.errors import RedisUnavailable, ReplyLost, TorilError
from toril.protocol.batch import Batch
from toril.protocol.worker_options import WorkerOptions
from toril.worker._attempt import FinishedAttempt
from toril.worker._batch_runner import BatchRunner
from toril.worker._connection import Connection
from toril.worker._fetch_loop import MAX_BATCH, FetchLoop
from toril.worker._observer import WorkerObserver

# While jobs wait for others, their number is read this often: a tenth of the time that they may wait, within bounds.
SHORTEST_CHECK, LONGEST_CHECK = 0.005, 0.1


class BatchFetchLoop(FetchLoop[D]):
    """Moves jobs between a backend and a batch runner."""

    def __init__(
        self,
        backend: Backend[D],
        runner: BatchRunner[D],
        connection: Connection[D],
        observer: WorkerObserver[D],
        options: WorkerOptions,
        batch: Batch,
    ) -> None:
        self._batches = runner
        super().__init__(backend, runner, connection, observer, options)
        self._batch = batch
        self._check_interval = min(max(batch.wait / 10, SHORTEST_CHECK), LONGEST_CHECK)
        self._checking: asyncio.Task[None] | None = None
        self._is_enough = not batch.waits  # whether the next fetch may be sent
        self._waiting_since: float | None = None  # since when there are jobs, but fewer than a batch has

    def _set_concurrency(self, concurrency: int) -> None:
        self._concurrency = self._batches.most = concurrency
        self._batch_size = MAX_BATCH  # the outcomes of a batch go in one call

    def stop_fetching(self) -> None:
        super().stop_fetching()
        self._batches.fetched(more=False)

    # --- calls ----------------------------------------------------------------------------------------------

    def _capacity(self) -> int:
        if not self._fetching or self._limited or self._requested:
            return 0
        return min(self._batches.wanted(), MAX_BATCH)

    def _send(self, capacity: int) -> None:
        if capacity and not self._is_enough and not self._batches.is_filling:
            self._may_have_jobs = True
            self._check_ready()
            capacity = 0
        if capacity or self._finished:
            super()._send(capacity)
        if capacity:
            self._is_enough = not self._batch.waits

    def _accept(self, batch: list[FinishedAttempt[D]], fetched: Fetched[D], capacity: int) -> None:
        super()._accept(batch, fetched, capacity)
        if capacity:
            self._batches.fetched(more=self._fetching and len(fetched.deliveries) == capacity)

    def _failed(self, error: Exception) -> None:
        self._batches.fetched(more=False)
        super()._failed(error)

    # --- waiting for more jobs ------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        """Reads how many jobs are ready, unless that is under way or planned."""
        if self._checking is None and self._timer is None:
            self._checking = asyncio.create_task(self._check(), name="toril-batch-check")
            self._recoveries.add(self._checking)
            self._checking.add_done_callback(self._recoveries.discard)

    async def _check(self) -> None:
        try:
            ready = await self._backend.count_ready()
        except (RedisUnavailable, ReplyLost) as error:
            await self._recover(error)
        except TorilError as error:
            self._report(error)
            await asyncio.sleep(0.0 if self._ended else 1.0)
        else:
            self._note_ready(ready)
        finally:
            self._checking = None
        self._flush()

    def _note_ready(self, ready: ReadyJobs) -> None:
        if not self._fetching:
            return
        now = time.monotonic()
        if ready.count == 0:
            self._waiting_since, self._may_have_jobs = None, False
            self._plan_check(ready.next_due_in)
            if not self.running:
                self._observer.drained()
        elif ready.held or ready.count >= self._batch.size or self._has_waited(ready.count, now):
            self._waiting_since, self._is_enough = None, True
        else:
            since = self._waiting_since = self._waiting_since or now
            left = self._batch.wait - (now - since)
            self._plan_check(min(self._check_interval, max(left, SHORTEST_CHECK)))

    def _has_waited(self, count: int, now: float) -> bool:
        since = now if self._waiting_since is None else self._waiting_since
        return count >= self._batch.min_size and now - since >= self._batch.wait

    def _plan_check(self, seconds: float | None) -> None:
        if seconds is not None and self._timer is None:
            self._timer = self._loop.call_later(max(seconds, 0.0), self._fetch_again)
