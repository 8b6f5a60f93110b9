"""Runs one delivery: from the fetched job to its outcome.

Guarantee: every delivery that is started ends in exactly one outcome, whatever its handler does; each handler runs in a
fresh copy of the context in which the worker was started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Generic, Protocol

from toril.backends.base import D, Delivery
from toril.codecs.in_loop import encoded
from toril.errors import (
    FailedChildren,
    JobCancelled,
    JobExpired,
    JobTimedOut,
    LockLapsed,
    PendingChildren,
    PermanentError,
    StalledTooOften,
    StoppedByWorker,
    TorilError,
    TransientError,
)
from toril.protocol.backoff import Backoff, Given, call_backoff
from toril.protocol.duration import to_seconds
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Requeued,
    Retry,
    Undecided,
    UnknownName,
    WaitingForChildren,
    decide_outcome,
    no_retry,
    reason_of,
)
from toril.protocol.worker_options import WorkerOptions
from toril.worker._attempt import Attempt, FinishedAttempt
from toril.worker._executors import Executor, LoopExecutor
from toril.worker._job_adapter import EXPIRED, JobAdapter
from toril.worker._name_refusals import NameRefusals
from toril.worker._observer import WorkerObserver
from toril.worker._results import Returned, note_move
from toril.worker._status import WorkerStatus
from toril.worker._task_pool import TaskPool

# What the scripts write into a job that stalled more often than it may.
STALLED_TOO_OFTEN = "job stalled more than allowable limit"
# A coroutine that computes a backoff may call other services; while it does, its job stays active.
BACKOFF_SECONDS = 10.0


class FinishedAttempts(Protocol[D]):
    """Where the outcomes of attempts go: the fetch loop."""

    def settle(self, finished: FinishedAttempt[D]) -> None:
        """Submits an outcome to the queue."""

    def begin_returning(self) -> None:
        """From now on, requeued jobs are returned together, in the order in which they were fetched."""


class AttemptRunner(Generic[D]):
    """Starts and stops attempts. `connect` sets where their outcomes go, before the first attempt."""

    _results: FinishedAttempts[D]

    def __init__(
        self,
        executors: Mapping[str | None, Executor],
        own_options: Mapping[str | None, WorkerOptions],
        options: WorkerOptions,
        adapter: JobAdapter[D],
        observer: WorkerObserver[D],
        status: WorkerStatus,
        refusals: NameRefusals[D],
    ) -> None:
        self._executors = executors
        # With one handler for all, the job's name does not matter.
        self._only = executors.get(None) if len(executors) == 1 else None
        self._all_blocking = all(one.blocking for one in executors.values())
        self._options = options
        self._own_options = own_options  # those of the worker, with what the handler of a name sets
        self._adapter = adapter
        self._encode = adapter.encoder()
        self._codecs = adapter.codecs
        self._one_attempt = self._attempt if adapter.codecs is None else self._encoded_attempt
        self._observer = observer
        self._status = status
        self._refusals = refusals
        self._stop_message: str | None = None  # why no attempt begins any more
        self._loop = asyncio.get_running_loop()
        self._timeouts = options.job_timeouts
        self._has_timeouts = bool(self._timeouts) or any(
            one.job_timeout is not None for one in own_options.values()
        )
        self._tasks: TaskPool[Attempt[D]] = TaskPool(self._run)
        # By delivery: a job whose lock was lost and that was fetched again has two until its first handler ends.
        self.attempts: dict[int, Attempt[D]] = {}

    def connect(self, results: FinishedAttempts[D]) -> None:
        self._results = results

    def start(self, delivery: D, alone: bool) -> None:
        """Begins an attempt. The outcome of a job that was fetched alone may be passed on before this returns."""
        attempt = Attempt(delivery)
        if self._stop_message is not None:  # fetched by a call that was in flight when the worker stopped
            self._end(attempt, Requeued(self._stop_message.format(delivery.id)))
            return
        attempt.executor = executor = self._only or self._executor_of(delivery.name)
        if executor is None and self._adapter.reject_reason(delivery) is None:
            # No handler runs, and there may be thousands while a new version is deployed: they need no task.
            self._end(attempt, self._without_handler(attempt))
            return
        self.attempts[id(delivery)] = attempt
        self._tasks.start(attempt, alone=alone)

    def refused(self, finished: FinishedAttempt[D], error: TorilError) -> bool:
        """Handles an outcome that the queue refused; returns whether the attempt continues with another outcome.

        As in Node, an attempt that cannot complete because of its children has failed, with the refusal as its error.
        """
        if isinstance(error, LockLapsed):  # the same outcome again: the backend renews the lock first
            self._loop.call_soon(self._results.settle, finished)
            return True
        if isinstance(error, (PendingChildren, FailedChildren)):
            self._observer.callbacks.emit("error", error)
            self._fail(finished.attempt, error)
            return True
        self._observer.refused(finished, error)
        return False

    def _fail(self, attempt: Attempt[D], refusal: TorilError) -> None:
        attempt.refusal = refusal
        attempt.task = None  # the task of its handler runs other attempts by now
        self.attempts[id(attempt.delivery)] = attempt
        self._tasks.start(attempt)

    def waits_for_children(self, attempt: Attempt[D]) -> bool:
        """Whether the handler has moved its job to waiting-children: then its lock is released."""
        return attempt.job is not None and self._adapter.waits_for_children(attempt.job)

    # --- stopping -------------------------------------------------------------------------------------------

    def cancel_job(self, job_id: str, reason: str) -> bool:
        """Stops the attempts at a job as far as their executor can; False when there is none."""
        found = [one for one in self.attempts.values() if one.delivery.id == job_id]
        error = JobCancelled(job_id, reason)
        stopped = [self._stop(one, error) for one in found]
        return any(stopped)

    def cancel_running(self, reason: str) -> int:
        """Stops all attempts that run now; returns how many."""
        found = list(self.attempts.values())
        return sum(self._stop(one, JobCancelled(one.delivery.id, reason)) for one in found)

    def cancel_all(self, message: str) -> None:
        """Stops all attempts; jobs that are fetched later are returned without one. `{}` is the place of the job id."""
        self._stop_message = message
        for attempt in list(self.attempts.values()):
            reason = StoppedByWorker(message.format(attempt.delivery.id))
            self._stop(attempt, reason, again=not self._status.is_loop_ending)

    async def wait_cancelled(self, seconds: float) -> None:
        """Waits for attempts that were cancelled, no longer than that: a handler may not end."""
        tasks = {attempt.task for attempt in self.attempts.values() if attempt.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def give_up_all(self) -> None:
        """Returns jobs whose handlers did not end when they were cancelled; their results are ignored."""
        for attempt in list(self.attempts.values()):
            attempt.given_up = True
            self.attempts.pop(id(attempt.delivery), None)
            self._end(
                attempt,
                Requeued(
                    f"the handler of job {attempt.delivery.id} does not end after its cancellation: it is left running"
                ),
            )

    async def close(self) -> None:
        """Ends the tasks; no attempt may be running."""
        await self._tasks.close()

    def _stop(self, attempt: Attempt[D], reason: TorilError, *, again: bool = True) -> bool:
        """Stops an attempt. Without `again`, a task that was cancelled by others is not cancelled again."""
        if attempt.reason is not None:
            return False
        attempt.reason = reason
        if attempt.job is not None:
            self._adapter.set_cancelled(attempt.job)  # all that can be done for a handler in a thread
        if attempt.task is not None and (again or not attempt.task.cancelling()):
            attempt.task.cancel()
        return True

    # --- running --------------------------------------------------------------------------------------------

    async def _run(self, attempt: Attempt[D], task: asyncio.Task[Any]) -> None:
        delivery = attempt.delivery
        try:
            attempt.task = task
            if attempt.refusal is not None or attempt.reason is not None:
                outcome = await self._stopped(attempt)  # it was refused, or stopped before it began
            else:
                attempt.started = time.monotonic()
                executor = attempt.executor
                if executor is None:
                    outcome = self._without_handler(attempt)
                else:
                    if self._has_timeouts:
                        self._limit(attempt)
                    run = self._traced if self._observer.has_tracer else self._one_attempt
                    outcome = await run(attempt, executor)
        except asyncio.CancelledError:
            outcome = await self._stopped(attempt)
        except BaseException as error:  # whatever a handler raises is its job's outcome
            if isinstance(error, GeneratorExit) and not self._loop.is_running():
                raise  # the event loop has ended: nothing can be settled any more
            outcome = await self._failed(attempt, error)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not attempt.given_up:
            self.attempts.pop(id(delivery), None)
            self._end(attempt, outcome)
        if attempt.error is not None and is_ctrl_c(attempt):
            raise attempt.error  # settled, and still meant for the whole process

    def _limit(self, attempt: Attempt[D]) -> None:
        seconds = self._timeout_of(attempt.delivery.name)
        if seconds is None:
            return
        overdue = JobTimedOut(attempt.delivery.id, seconds)
        attempt.timer = self._loop.call_later(seconds, self._stop, attempt, overdue)

    def _timeout_of(self, name: str) -> float | None:
        """How long an attempt at a job of this name may run; None: for ever."""
        chosen = self._timeouts.get(name, self._options_of(name).job_timeout)
        return None if chosen is None else to_seconds("job_timeout", chosen)

    async def _traced(self, attempt: Attempt[D], executor: Executor) -> Outcome:
        with self._observer.trace(attempt.delivery):
            return await self._one_attempt(attempt, executor)

    async def _attempt(self, attempt: Attempt[D], executor: Executor) -> Outcome:
        delivery, adapter = attempt.delivery, self._adapter
        reject_reason = adapter.reject_reason(delivery)
        if reject_reason is not None:
            raise _rejection(reject_reason)
        attempt.job = job = adapter.make_job(delivery, executor.blocking)
        self._observer.attempt_started(attempt)
        result = await executor.run(job)
        if type(result) is Returned:  # encoded where the handler ran
            attempt.result, json = result
        else:
            attempt.result, json = result, self._encode(result)
        return Completed(json)

    async def _encoded_attempt(self, attempt: Attempt[D], executor: Executor) -> Outcome:
        """The same for a queue with codecs."""
        delivery, adapter = attempt.delivery, self._adapter
        reject_reason = adapter.reject_reason(delivery)
        if reject_reason is not None:
            raise _rejection(reject_reason)
        attempt.job = adapter.make_job(
            delivery, executor.blocking
        )  # callbacks get it if it cannot be decoded
        attempt.job = job = await adapter.decoded(attempt.job)
        self._observer.attempt_started(attempt)
        result = await executor.run(job)
        returned = result if type(result) is Returned else Returned(result, self._encode(result))
        attempt.result = returned.value
        return Completed(await self._encoded_result(delivery.name, returned.json))

    async def _encoded_result(self, name: str, json: bytes | None) -> bytes | None:
        """The JSON of a result after the codecs of the queue."""
        return (
            json
            if json is None or self._codecs is None
            else await encoded(self._codecs, name, json, "result")
        )

    def _end(self, attempt: Attempt[D], outcome: Outcome) -> None:
        if attempt.ended is None:  # an attempt whose outcome was refused ends a second time
            attempt.ended = time.monotonic()
            if type(outcome) is UnknownName:  # such a job was not run, and is not reported
                self._refusals.refused(outcome, attempt.ended)
            else:
                if attempt.job is None:
                    attempt.job = self._adapter.job_for_callbacks(attempt.delivery, self._all_blocking)
                self._observer.attempt_ended(attempt)
        if type(outcome) is Requeued and self._status.is_loop_ending:
            self._results.begin_returning()
        self._results.settle(FinishedAttempt(attempt.delivery, outcome, attempt))

    def _executor_of(self, name: str) -> Executor | None:
        return self._only or self._executors.get(name) or self._executors.get(None)

    def _options_of(self, name: str) -> WorkerOptions:
        return self._own_options.get(name) or self._own_options.get(None) or self._options

    # --- outcomes -------------------------------------------------------------------------------------------

    def _without_handler(self, attempt: Attempt[D]) -> Outcome:
        """The outcome of a job without a handler for its name: no attempt is made, nothing is traced."""
        delivery = attempt.delivery
        reject_reason = self._adapter.reject_reason(delivery)
        if reject_reason is not None:
            raise _rejection(reject_reason)
        outcome = self._refusals.outcome_of(delivery)
        attempt.error = outcome.error if isinstance(outcome, Failed) else None
        return outcome

    async def _stopped(self, attempt: Attempt[D]) -> Outcome:
        if attempt.refusal is not None:
            return await self._failed(attempt, attempt.refusal)
        if self.waits_for_children(attempt):
            return WaitingForChildren(moved=True)  # its handler has moved it: it must not be returned
        reason = attempt.reason
        if self._interrupted(attempt):
            return Requeued("the program ends" if reason is None else str(reason))
        # A handler may be cancelled by a task of its own: that is a failure like others.
        return await self._failed(attempt, reason or TransientError("the handler was cancelled"))

    def _interrupted(self, attempt: Attempt[D]) -> bool:
        """Whether a handler was cancelled because its worker ends: whatever it raises then is not its failure."""
        if attempt.reason is not None:
            return isinstance(attempt.reason, StoppedByWorker)
        if is_ctrl_c(attempt):
            return True
        return attempt.task is not None and attempt.task.cancelling() > 0 and self._status.is_loop_ending

    async def _failed(self, attempt: Attempt[D], error: BaseException) -> Outcome:
        """The outcome after an error: another attempt, or failure."""
        attempt.error = error
        note_move(error, attempt.job)
        delivery = attempt.delivery
        outcome = decide_outcome(
            error,
            attempts_made=delivery.attempts_made,
            max_attempts=_max_attempts(delivery),
            backoff=self._backoff(delivery),
            options=self._options_of(delivery.name),
        )
        if (
            isinstance(outcome, Failed | Retry | Undecided)
            and attempt.refusal is None
            and self._interrupted(attempt)
        ):
            return Requeued(f"the worker ends; the handler raised {reason_of(error)}")
        return await self._decided(attempt, outcome) if isinstance(outcome, Undecided) else outcome

    async def _decided(self, attempt: Attempt[D], undecided: Undecided) -> Outcome:
        """Calls the application's backoff; if it raises, the job fails and the error is logged."""
        if attempt.timer is not None:
            attempt.timer.cancel()  # the handler has ended
        reason = attempt.reason
        try:
            return undecided.decided(await self._computed(attempt, undecided))
        except asyncio.CancelledError as cancelled:
            if attempt.reason is not reason or self._interrupted(attempt):
                # The worker stops, the program ends, or the job was cancelled meanwhile.
                return await self._stopped(attempt)
            problem: BaseException = cancelled
        except Exception as error:  # whatever a function of the application raises
            problem = error
        self._observer.error(problem)
        return no_retry(undecided.error, problem)

    async def _computed(self, attempt: Attempt[D], undecided: Undecided) -> Given:
        delay = call_backoff(undecided.function, undecided.attempts_made, undecided.error, attempt.job)
        if not isinstance(delay, Awaitable):
            return delay
        async with asyncio.timeout(BACKOFF_SECONDS):
            return await delay

    def _backoff(self, delivery: D) -> Backoff | None:
        try:
            return self._adapter.backoff_of(delivery)
        except TorilError:
            return None  # malformed options: the error of the attempt itself is more useful


def _rejection(reason: str) -> PermanentError:
    if reason == EXPIRED:
        return JobExpired(reason)
    return StalledTooOften(reason) if reason == STALLED_TOO_OFTEN else PermanentError(reason)


def _max_attempts(delivery: Delivery) -> int:
    try:
        return delivery.max_attempts
    except TorilError:
        return 1


def is_ctrl_c(attempt: Attempt[Any]) -> bool:
    """Whether Ctrl-C came while the handler ran in the event loop. Python raises it nowhere else: in a thread or a
    process, the handler itself has raised `KeyboardInterrupt`."""
    return isinstance(attempt.error, KeyboardInterrupt) and isinstance(attempt.executor, LoopExecutor)
