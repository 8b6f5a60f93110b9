"""Runs deliveries in batches: one call of a handler for many jobs.

Guarantee: as for single attempts, every delivery ends in exactly one outcome. An error that the handler raises is the
error of all jobs of its batch that have none of their own. No more batches run at once than the worker allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toril.backends.base import D
from toril.errors import JobCancelled, JobTimedOut, PermanentError
from toril.jobs.job_batch import JobBatch
from toril.protocol.batch import BatchBy
from toril.protocol.outcome import Completed, Outcome, Requeued
from toril.protocol.worker_options import WorkerOptions
from toril.worker._attempt import Attempt
from toril.worker._attempt_runner import AttemptRunner, is_ctrl_c
from toril.worker._executors import Executor
from toril.worker._job_adapter import JobAdapter
from toril.worker._name_refusals import NameRefusals
from toril.worker._observer import WorkerObserver
from toril.worker._results import Returned
from toril.worker._status import WorkerStatus
from toril.worker.batch_function import BatchFunction
from toril.worker.configured_handler import ConfiguredHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What a batch may contain."""

    size: int
    by: BatchBy | None = None
    gives_deliveries: bool = False  # the handler is a `BatchFunction`


def batch_rules(
    handlers: Mapping[str | None, ConfiguredHandler], options: WorkerOptions
) -> BatchRules | None:
    """The rules of a worker whose handlers take batches; None if they take single jobs."""
    function = handlers[None].function if None in handlers else None
    if isinstance(function, BatchFunction):
        return BatchRules(size=function.size, gives_deliveries=True)
    return None if options.batch is None else BatchRules(size=options.batch.size, by=options.batch.by)


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
    rules = batch_rules(handlers, options)
    if rules is None:
        return AttemptRunner(executors, own_options, options, adapter, observer, status, refusals)
    runner = BatchRunner(executors, own_options, options, adapter, observer, status, refusals)
    runner.use(rules, 1 if rules.gives_deliveries else options.concurrency)
    return runner


class BatchRunner(AttemptRunner[D]):
    """Collects deliveries and runs them together."""

    _rules: BatchRules
    most: int  # batches that may run at once

    def use(self, rules: BatchRules, most: int) -> None:
        """Sets the rules; before the first attempt."""
        self._rules, self.most = rules, most
        self._waiting: dict[Hashable, deque[Attempt[D]]] = {}  # by what the jobs of a batch have in common
        self._collected = 0  # attempts that wait
        self._is_filling = False  # a batch is larger than one fetch, and the rest of it is being fetched
        self._batches: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()

    def start(self, delivery: D, alone: bool) -> None:
        executor = self._only or self._executor_of(delivery.name)
        is_rejected = self._adapter.reject_reason(delivery) is not None
        if self._stop_message is not None or executor is None or is_rejected:
            super().start(delivery, alone)
            return
        attempt = Attempt(delivery)
        attempt.executor = executor
        self.attempts[id(delivery)] = attempt
        key = self._key(attempt)
        if key not in self._waiting:
            self._waiting[key] = deque()
        self._waiting[key].append(attempt)
        self._collected += 1
        if self._collected == 1:
            self._loop.call_soon(self._start_batches)  # deliveries of one reply join one batch

    def _key(self, attempt: Attempt[D]) -> Hashable:
        match self._rules.by:
            case "name":
                return id(attempt.executor), attempt.delivery.name
            case "group":
                return id(attempt.executor), self._adapter.group_of(attempt.delivery)
            case None:
                return id(attempt.executor)

    # --- fetching -------------------------------------------------------------------------------------------

    @property
    def is_filling(self) -> bool:
        """Whether the last batch is incomplete because one fetch returns fewer jobs than a batch has."""
        return self._is_filling

    def wanted(self) -> int:
        """How many jobs the next batch lacks; 0 while none may begin."""
        if len(self._batches) >= self.most or (self._collected and not self._is_filling):
            return 0
        return max(0, self._rules.size - self._collected)

    def fetched(self, *, more: bool) -> None:
        """The deliveries of a reply are started; `more` are fetched for the same batch."""
        self._is_filling = more and 0 < self._collected < self._rules.size
        self._start_batches()

    # --- batches --------------------------------------------------------------------------------------------

    def _start_batches(self) -> None:
        while self._waiting and len(self._batches) < self.most and not self._is_filling:
            batch = self._take()
            context = self._context.copy()
            task = self._loop.create_task(self._run_batch(batch), name="toril-batch", context=context)
            self._batches.add(task)
            task.add_done_callback(self._ended)

    def _take(self) -> list[Attempt[D]]:
        """The oldest jobs that fit into one batch; those that are left wait behind the others."""
        key = next(iter(self._waiting))
        same = self._waiting.pop(key)
        batch = [same.popleft() for _ in range(min(self._rules.size, len(same)))]
        if same:
            self._waiting[key] = same
        self._collected -= len(batch)
        return batch

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and isinstance(error, Exception):
            self._observer.error(error)
        self._start_batches()

    async def _run_batch(self, batch: Sequence[Attempt[D]]) -> None:
        task = asyncio.current_task()
        begun = await self._begun(batch)
        results = await self._results_of(begun) if begun else []
        if task is not None:
            self._batches.discard(task)  # the call that settles these jobs may fetch the next ones
        for attempt, result in zip(begun, results, strict=True):
            if attempt.given_up:
                continue
            if type(result) is bytes and attempt.reason is None and self._codecs is None:
                attempt.result = result  # of a `BatchFunction`: there is nothing to wait for
                self._finish(attempt, Completed(result))
            else:
                self._finish(attempt, await self._outcome(attempt, result))
        interrupt = next((one.error for one in begun if one.error is not None and is_ctrl_c(one)), None)
        if interrupt is not None:
            raise interrupt  # settled, and still meant for the whole process

    async def _begun(self, batch: Sequence[Attempt[D]]) -> list[Attempt[D]]:
        """The attempts that begin; one that was stopped, or whose payload is invalid, ends here."""
        begun: list[Attempt[D]] = []
        now = time.monotonic()
        for attempt in batch:
            attempt.started = now
            if attempt.reason is not None:
                self._finish(attempt, await self._stopped(attempt))
            elif self._rules.gives_deliveries or await self._has_job(attempt):
                begun.append(attempt)
        return begun

    async def _has_job(self, attempt: Attempt[D]) -> bool:
        """Makes the job object; returns False after an attempt that has failed."""
        if attempt.executor is None:
            return True
        try:
            attempt.job = self._adapter.make_job(attempt.delivery, attempt.executor.blocking)
            if self._codecs is not None:
                attempt.job = await self._adapter.decoded(attempt.job)
        except Exception as error:  # a model of the application may raise anything
            self._finish(attempt, await self._failed(attempt, error))
            return False
        self._observer.attempt_started(attempt)
        return True

    async def _results_of(self, batch: Sequence[Attempt[D]]) -> Sequence[Returned | bytes | BaseException]:
        """A result or an error for each job; cancelled only by a stop of the worker or the end of the program."""
        seconds = self._longest_timeout(batch)
        try:
            async with asyncio.timeout(seconds) as limit:
                results: Sequence[Returned | bytes | BaseException] = await self._traced_call(batch)
        except TimeoutError as error:
            if not limit.expired() or seconds is None:
                return [error] * len(batch)
            return [JobTimedOut(one.delivery.id, seconds) for one in batch]
        except asyncio.CancelledError as error:
            return [error] * len(batch)
        except BaseException as error:  # whatever the function raises is the error of its jobs
            return [error] * len(batch)
        if len(results) != len(batch):
            problem = f"the batch function returned {len(results)} results for {len(batch)} jobs; return one for each"
            return [PermanentError(problem)] * len(batch)
        return results

    def _longest_timeout(self, batch: Sequence[Attempt[D]]) -> float | None:
        if not self._has_timeouts:
            return None
        timeouts = {self._timeout_of(one.delivery.name) for one in batch}
        return max(one for one in timeouts if one is not None) if None not in timeouts else None

    async def _traced_call(self, batch: Sequence[Attempt[D]]) -> Any:
        with contextlib.ExitStack() as spans:
            if self._observer.has_tracer:
                for attempt in batch:
                    spans.enter_context(self._observer.trace(attempt.delivery))
            return await self._call(batch)

    async def _call(self, batch: Sequence[Attempt[D]]) -> Any:
        executor = batch[0].executor
        if executor is None:  # such attempts are never collected
            raise PermanentError("there is no handler for this job; give the worker one for its name")
        is_plain = self._rules.gives_deliveries
        argument = [one.delivery for one in batch] if is_plain else JobBatch(one.job for one in batch)
        returned = await executor.run(argument)
        return returned.value if isinstance(returned, Returned) else returned

    async def _outcome(self, attempt: Attempt[D], result: Returned | bytes | BaseException) -> Outcome:
        if isinstance(result, asyncio.CancelledError):
            attempt.task = asyncio.current_task()
            return await self._stopped(attempt)
        if isinstance(attempt.reason, JobCancelled):
            return await self._stopped(attempt)
        if isinstance(result, BaseException):
            return await self._failed(attempt, result)
        attempt.result, json = result if isinstance(result, Returned) else (result, result)
        try:
            return Completed(await self._encoded_result(attempt.delivery.name, json))
        except Exception as error:  # a store of the application may raise anything
            return await self._failed(attempt, error)

    def _finish(self, attempt: Attempt[D], outcome: Outcome) -> None:
        self.attempts.pop(id(attempt.delivery), None)
        self._end(attempt, outcome)

    # --- stopping -------------------------------------------------------------------------------------------

    def cancel_all(self, message: str) -> None:
        super().cancel_all(message)
        waiting, self._waiting, self._collected = self._waiting, {}, 0
        for attempt in (one for same in waiting.values() for one in same):
            self._finish(attempt, Requeued(message.format(attempt.delivery.id)))
        for task in self._batches:
            if not (self._status.is_loop_ending and task.cancelling()):
                task.cancel()

    async def wait_cancelled(self, seconds: float) -> None:
        await super().wait_cancelled(seconds)
        if self._batches:
            await asyncio.wait(self._batches, timeout=seconds)

    async def close(self) -> None:
        left = set(self._batches)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        await super().close()
