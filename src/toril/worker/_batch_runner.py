"""Runs deliveries in batches: a `BatchFunction` gets all that were fetched while its last batch ran.

Guarantee: as for single attempts, every delivery ends in exactly one outcome. An error that the function raises is the
error of all jobs of its batch. No job waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from toril.backends.base import D
from toril.errors import JobCancelled, JobTimedOut, PermanentError
from toril.protocol.outcome import Completed, Outcome, Requeued
from toril.protocol.worker_options import WorkerOptions
from toril.worker._attempt import Attempt
from toril.worker._attempt_runner import AttemptRunner
from toril.worker._executors import Executor, Handler
from toril.worker._job_adapter import JobAdapter
from toril.worker._name_refusals import NameRefusals
from toril.worker._observer import WorkerObserver
from toril.worker._status import WorkerStatus
from toril.worker._threads import JobThreads
from toril.worker.batch_function import BatchFunction, BatchResults
from toril.worker.configured_handler import ConfiguredHandler


def make_runner(
    handlers: Mapping[str | None, ConfiguredHandler],
    executors: Mapping[str | None, Executor],
    options: WorkerOptions,
    adapter: JobAdapter[D],
    observer: WorkerObserver[D],
    status: WorkerStatus,
    refusals: NameRefusals[D],
) -> AttemptRunner[D]:
    """The runner for the handlers of a worker."""
    own_options = {name: one.options(options) for name, one in handlers.items()}
    function = handlers[None].function if None in handlers else None
    if not isinstance(function, BatchFunction):
        return AttemptRunner(executors, own_options, options, adapter, observer, status, refusals)
    runner = BatchRunner(executors, own_options, options, adapter, observer, status, refusals)
    runner.use(function)
    return runner


class BatchRunner(AttemptRunner[D]):
    """Collects deliveries and runs them together."""

    _function: Handler
    _size: int

    def use(self, function: Any) -> None:
        """Sets the function; before the first attempt."""
        self._function, self._size = function, function.size
        self._timeout = self._options_of("").job_timeout
        self._waiting: deque[Attempt[D]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._threads = JobThreads("toril-batch")

    def start(self, delivery: D, alone: bool) -> None:
        if self._stop_message is not None or self._adapter.reject_reason(delivery) is not None:
            super().start(delivery, alone)
            return
        attempt = Attempt(delivery)
        self.attempts[id(delivery)] = attempt
        self._waiting.append(attempt)
        if self._running is None:
            self._running = asyncio.create_task(self._run_all(), name="toril-batches")

    def cancel_all(self, message: str) -> None:
        super().cancel_all(message)
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            self._finish(attempt, Requeued(message.format(attempt.delivery.id)))

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        self._threads.close()
        await super().close()

    async def _run_all(self) -> None:
        """Runs batch after batch until none waits. Deliveries of one reply join one batch."""
        try:
            while self._waiting:
                size = min(self._size, len(self._waiting))
                await self._run_batch([self._waiting.popleft() for _ in range(size)])
        finally:
            self._running = None

    async def _run_batch(self, batch: Sequence[Attempt[D]]) -> None:
        for attempt in batch:
            attempt.started = time.monotonic()
        results = await self._call([attempt.delivery for attempt in batch])
        for attempt, result in zip(batch, results, strict=True):
            if not attempt.given_up:
                self._finish(attempt, await self._outcome(attempt, result))

    async def _call(self, deliveries: Sequence[D]) -> BatchResults:
        call = self._threads.call(lambda: self._function(deliveries))
        try:
            async with asyncio.timeout(None if self._timeout is None else float(self._timeout)):
                results: BatchResults = await call
        except TimeoutError as error:
            if self._timeout is None or not call.cancelled():
                return [error] * len(deliveries)
            return [JobTimedOut(one.id, float(self._timeout)) for one in deliveries]
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever the function raises is the error of its jobs
            return [error] * len(deliveries)
        if len(results) != len(deliveries):
            problem = f"the batch function returned {len(results)} results for {len(deliveries)} jobs"
            return [PermanentError(problem)] * len(deliveries)
        return results

    async def _outcome(self, attempt: Attempt[D], result: bytes | BaseException) -> Outcome:
        if isinstance(attempt.reason, JobCancelled):
            return await self._stopped(attempt)
        if isinstance(result, BaseException):
            return await self._failed(attempt, result)
        attempt.result = result
        return Completed(result)

    def _finish(self, attempt: Attempt[D], outcome: Outcome) -> None:
        self.attempts.pop(id(attempt.delivery), None)
        self._end(attempt, outcome)
