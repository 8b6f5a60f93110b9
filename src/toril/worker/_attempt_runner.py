"""Runs one delivery: from the job in hand to its outcome.

Guarantee: every delivery that is started ends in exactly one outcome, whatever its handler does; each handler runs in a
fresh copy of the context in which the worker was started.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from toril.errors import (
    JobTimedOut,
    PermanentError,
    StalledTooOften,
    StoppedByWorker,
    TorilError,
    TransientError,
)
from toril.protocol.backoff import Backoff, Given, call_backoff
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Requeued,
    Retry,
    Undecided,
    WaitingForChildren,
    decide_outcome,
    judge_name,
    no_retry,
    note_move,
    reason_of,
)
from toril.protocol.stack_trace import is_remote
from toril.protocol.worker_options import WorkerOptions
from toril.telemetry.hooks import Work
from toril.worker._executors import Executor, LoopExecutor
from toril.worker._results import Encode, Returned
from toril.worker._task_pool import TaskPool

# What the scripts write into a job that stalled more often than it may.
STALLED_TOO_OFTEN = "job stalled more than allowable limit"
# A coroutine that computes a backoff may ask somebody; while it does, its job stays in hand.
BACKOFF_SECONDS = 10.0


class Attempt:
    """One attempt at a job: its task, and why it was cancelled, if it was."""

    __slots__ = (
        "delivery",
        "ended",
        "error",
        "executor",
        "given_up",
        "reason",
        "refusal",
        "result",
        "started",
        "subject",
        "task",
        "timer",
    )

    def __init__(self, delivery: Any) -> None:
        self.delivery = delivery
        self.executor: Executor | None = None
        self.subject: Any = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.reason: TorilError | None = None
        self.given_up = False  # settled without its handler, which would not end
        self.result: Any = None
        self.error: BaseException | None = None
        self.refusal: TorilError | None = None  # why the queue did not accept the outcome
        self.started = time.monotonic()
        self.ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long the handler ran, or has been running."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started


class AttemptRunner:
    """Starts attempts, and hands over their outcomes."""

    def __init__(
        self,
        *,
        executors: Mapping[str | None, Executor],
        options: WorkerOptions,
        make_job: Callable[[Any, bool], Any],
        backoff_of: Callable[[Any], Backoff | None],
        encode: Encode,
        reject_reason: Callable[[Any], str | None],
        on_start: Callable[[Attempt], Any],
        on_end: Callable[[Attempt, Outcome], Any],
        work_of: Callable[[Any], Work],
        on_error: Callable[[BaseException], Any],
        now_ms: Callable[[], int],
        torn_down: Callable[[], bool],
        known_elsewhere: Callable[[str], bool],
    ) -> None:
        self._executors = executors
        # With one handler for all, nobody need look at a job's name.
        self._only = executors.get(None) if len(executors) == 1 else None
        self._known = tuple(name for name in executors if name is not None)
        self._options = options
        self._make_job = make_job
        self._backoff_of = backoff_of
        self._encode = encode
        self._reject_reason = reject_reason
        self._on_start = on_start
        self._on_end = on_end
        self._tracer = options.tracer
        self._work_of = work_of
        self._on_error = on_error
        self._now_ms = now_ms
        self._known_elsewhere = known_elsewhere  # whether another worker has a handler for this name
        self._torn_down = torn_down  # whether the event loop is being ended around us
        # Jobs that are refused in the same moment are delayed alike: different delays cost the server a search each.
        self._refused_at, self._jitter = 0, 0.0
        self._stop_reason: Callable[[str], TorilError] | None = None  # why no attempt begins any more
        self._loop = asyncio.get_running_loop()
        self._timeout = options.job_timeout
        self._lanes: TaskPool[Attempt] = TaskPool(self._run)
        # By delivery: a job that was lost and came back to us is in hand twice until its first handler ends.
        self.attempts: dict[int, Attempt] = {}

    def start(self, delivery: Any, alone: bool) -> None:
        """Begins an attempt; its outcome comes through `on_end`, for a job that came alone perhaps at once."""
        attempt = Attempt(delivery)
        if self._stop_reason is not None:  # taken by a call that was in flight when the worker stopped
            self._on_end(attempt, Requeued(str(self._stop_reason(delivery.id))))
            return
        attempt.executor = executor = self._only or self._executor_of(delivery.name)
        if executor is None and self._reject_reason(delivery) is None:
            # Nothing is run, and thousands may come while a new version is rolled out: they need no lane.
            self._on_end(attempt, self._without_handler(attempt))
            return
        self.attempts[id(delivery)] = attempt
        if alone:
            self._lanes.begin(attempt)
        else:
            self._lanes.put(attempt)

    def fail(self, attempt: Attempt, refusal: TorilError) -> None:
        """Fails an attempt whose outcome the queue refused; what follows comes through `on_end`."""
        attempt.refusal = refusal
        attempt.task = None  # the task of its handler runs other attempts by now
        self.attempts[id(attempt.delivery)] = attempt
        self._lanes.put(attempt)

    async def wait_cancelled(self, seconds: float) -> None:
        """Waits for attempts that were cancelled, no longer than that: a handler may refuse to end."""
        tasks = {attempt.task for attempt in self.attempts.values() if attempt.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """Ends what runs attempts; there must be none any more."""
        await self._lanes.close()

    def cancel(self, job_id: str, reason: TorilError) -> bool:
        """Stops the attempts at a job as far as their executor can; False when there is none."""
        found = [one for one in self.attempts.values() if one.delivery.id == job_id]
        stopped = [self._stop(one, reason) for one in found]
        return any(stopped)

    def cancel_all(self, reason: Callable[[str], TorilError]) -> None:
        """Stops all attempts; jobs that still come are sent back without one."""
        self._stop_reason = reason
        for attempt in list(self.attempts.values()):
            self._stop(attempt, reason(attempt.delivery.id), again=not self._torn_down())

    def give_up_all(self) -> None:
        """Sends back jobs whose handlers did not end when they were cancelled; what these still return is ignored."""
        for attempt in list(self.attempts.values()):
            attempt.given_up = True
            self.attempts.pop(id(attempt.delivery), None)
            self._on_end(
                attempt, Requeued(f"the handler of job {attempt.delivery.id} does not end: it is left behind")
            )

    @staticmethod
    def _stop(attempt: Attempt, reason: TorilError, *, again: bool = True) -> bool:
        """Tells an attempt to end; not `again` if its task was cancelled by others: its cleaning up goes on."""
        if attempt.reason is not None:
            return False
        attempt.reason = reason
        if hasattr(attempt.subject, "cancelled"):
            attempt.subject.cancelled = True  # a handler in a thread can only be told
        if attempt.task is not None and (again or not attempt.task.cancelling()):
            attempt.task.cancel()
        return True

    async def _run(self, attempt: Attempt, task: asyncio.Task[Any]) -> None:
        delivery = attempt.delivery
        try:
            attempt.task = task
            if attempt.refusal is not None or attempt.reason is not None:
                outcome = await self._stopped(attempt)  # it was refused, or cancelled before its turn came
            else:
                attempt.started = time.monotonic()
                executor = attempt.executor
                if executor is None:
                    outcome = self._without_handler(attempt)
                else:
                    if self._timeout is not None:
                        self._limit(attempt, float(self._timeout))
                    run = self._attempt if self._tracer is None else self._traced
                    outcome = await run(attempt, executor)
        except asyncio.CancelledError:
            outcome = await self._stopped(attempt)
        except BaseException as error:  # whatever a handler raises is its job's outcome
            if isinstance(error, GeneratorExit) and not self._loop.is_running():
                raise  # the loop is being torn down: nothing can be settled any more
            outcome = await self._failed(attempt, error)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if not attempt.given_up:
            self.attempts.pop(id(delivery), None)
            self._on_end(attempt, outcome)
        if isinstance(attempt.error, KeyboardInterrupt) and not is_remote(attempt.error):
            raise attempt.error  # settled, and still meant for the whole process

    def _limit(self, attempt: Attempt, seconds: float) -> None:
        overdue = JobTimedOut(attempt.delivery.id, seconds)
        attempt.timer = self._loop.call_later(seconds, self._stop, attempt, overdue)

    async def _traced(self, attempt: Attempt, executor: Executor) -> Outcome:
        assert self._tracer is not None  # noqa: S101  # whoever calls has looked
        with self._tracer.processing(self._work_of(attempt.delivery)):
            return await self._attempt(attempt, executor)

    async def _attempt(self, attempt: Attempt, executor: Executor) -> Outcome:
        delivery = attempt.delivery
        why = self._reject_reason(delivery)
        if why is not None:
            raise _error_of(why)
        attempt.subject = subject = self._make_job(delivery, executor.blocking)
        self._on_start(attempt)
        result = await executor.run(subject)
        if type(result) is Returned:  # encoded where the handler ran
            attempt.result, json = result
        else:
            attempt.result, json = result, self._encode(result)
        return Completed(json)

    def _executor_of(self, name: str) -> Executor | None:
        return self._only or self._executors.get(name) or self._executors.get(None)

    def _without_handler(self, attempt: Attempt) -> Outcome:
        """What becomes of a job whose name this worker does not know: no attempt is made, nothing is traced."""
        delivery = attempt.delivery
        why = self._reject_reason(delivery)
        if why is not None:
            raise _error_of(why)
        now_ms = self._now_ms()
        if now_ms != self._refused_at:
            self._refused_at, self._jitter = now_ms, random.random()
        name = delivery.name
        outcome = judge_name(
            name,
            self._known,
            delivery.refusals,
            now_ms=now_ms,
            options=self._options,
            rng=lambda: self._jitter,
            is_known_elsewhere=self._known_elsewhere(name),
        )
        attempt.error = outcome.error if isinstance(outcome, Failed) else None
        return outcome

    async def _stopped(self, attempt: Attempt) -> Outcome:
        if attempt.refusal is not None:
            return await self._failed(attempt, attempt.refusal)
        if getattr(attempt.subject, "waits_for_children", False):
            return WaitingForChildren(moved=True)  # its handler has moved it: it is not ours to give back
        reason = attempt.reason
        if self._interrupted(attempt):
            return Requeued("the program ends" if reason is None else str(reason))
        # A handler may be cancelled from within, by a task of its own: that is a failure like others.
        return await self._failed(attempt, reason or TransientError("the handler was cancelled"))

    def _interrupted(self, attempt: Attempt) -> bool:
        """Whether a handler was cancelled because its worker ends: whatever it raises then is not its failure."""
        if attempt.reason is not None:
            return isinstance(attempt.reason, StoppedByWorker)
        if isinstance(attempt.error, KeyboardInterrupt) and not is_remote(attempt.error):
            # Ctrl-C struck while the handler ran in the loop, and ends the program.
            return isinstance(self._executor_of(attempt.delivery.name), LoopExecutor)
        return attempt.task is not None and attempt.task.cancelling() > 0 and self._torn_down()

    async def _failed(self, attempt: Attempt, error: BaseException) -> Outcome:
        """What follows for a job from the error of its attempt: another attempt, or the end."""
        attempt.error = error
        note_move(error, attempt.subject)
        delivery = attempt.delivery
        outcome = decide_outcome(
            error,
            attempts_made=delivery.attempts_made,
            max_attempts=_max_attempts(delivery),
            backoff=self._backoff(delivery),
            options=self._options,
        )
        if (
            isinstance(outcome, Failed | Retry | Undecided)
            and attempt.refusal is None
            and self._interrupted(attempt)
        ):
            return Requeued(f"the worker ends; the handler raised {reason_of(error)}")
        return await self._decided(attempt, outcome) if isinstance(outcome, Undecided) else outcome

    async def _decided(self, attempt: Attempt, undecided: Undecided) -> Outcome:
        """Asks the application when the next attempt begins; if it cannot say, the job fails, and why is logged."""
        if attempt.timer is not None:
            attempt.timer.cancel()  # the handler has ended
        reason = attempt.reason
        try:
            return undecided.decided(await self._asked(attempt, undecided))
        except asyncio.CancelledError as cancelled:
            if attempt.reason is not reason or self._interrupted(attempt):
                # The worker stops, the program ends, or somebody cancelled the job meanwhile.
                return await self._stopped(attempt)
            problem: BaseException = cancelled
        except Exception as error:  # noqa: BLE001  # whatever a function of the application raises
            problem = error
        self._on_error(problem)
        return no_retry(undecided.error, problem)

    async def _asked(self, attempt: Attempt, undecided: Undecided) -> Given:
        given = call_backoff(undecided.function, undecided.attempts_made, undecided.error, attempt.subject)
        if not isinstance(given, Awaitable):
            return given
        async with asyncio.timeout(BACKOFF_SECONDS):
            return await given

    def _backoff(self, delivery: Any) -> Backoff | None:
        try:
            return self._backoff_of(delivery)
        except TorilError:
            return None  # malformed options: the attempt's own error tells more


def _error_of(why: str) -> PermanentError:
    return StalledTooOften(why) if why == STALLED_TOO_OFTEN else PermanentError(why)


def _max_attempts(delivery: Any) -> int:
    try:
        return int(delivery.max_attempts)
    except TorilError:
        return 1
