"""How an attempt ended, as values to be matched exhaustively.

Guarantee: `decide_outcome` is a pure function, shared by all kinds of queue: the same error, attempts and options give
the same outcome, up to the random numbers passed in. It calls no function of the application: where one decides when
the next attempt begins, the result is `Undecided`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toril.errors import (
    JobCancelled,
    JobExpired,
    JobTimedOut,
    PermanentError,
    Postpone,
    RateLimitError,
    Requeue,
    StalledTooOften,
    UnknownBackoff,
    WaitingChildrenError,
)
from toril.protocol.backoff import Backoff, BackoffFunction, Given, Random, custom_function, next_delay
from toril.protocol.classify import ErrorCategory, known_category, retry_after
from toril.protocol.refusals import GIVE_UP_AFTER, Refusals
from toril.protocol.stack_trace import message_of, stack_of, storable
from toril.protocol.worker_options import WorkerOptions
from toril.telemetry.hooks import FailureReason

_MOST_NAMES = 20  # of handlers, in the reason of a job that none of them is for


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed for good."""

    reason: str
    stacktrace: str = ""
    kind: FailureReason = "permanent"
    # The error, if it is known here: the reason of a dead letter depends on it. It is not compared.
    error: BaseException | None = field(default=None, compare=False, repr=False)
    is_unknown: bool = False  # permanent only because nothing is known about errors of this kind


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed; the next one begins in `delay` seconds."""

    delay: float
    reason: str
    stacktrace: str = ""


@dataclass(frozen=True, slots=True)
class Postponed:
    """The handler requested to run again in `delay` seconds; no attempt is counted."""

    delay: float


@dataclass(frozen=True, slots=True)
class RateLimited:
    """The job is given back and fetching pauses for `delay` seconds (`None`: the limit that is set already)."""

    delay: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingForChildren:
    """The job waits for its children, then runs again."""

    moved: bool = False  # the handler has moved it itself: there is nothing to settle


@dataclass(frozen=True, slots=True)
class Requeued:
    """The job is given back at once and no attempt is counted: the handler requested it, or the worker stops."""

    reason: str = "requeued"
    rank: int = 0  # of jobs that go back together: how many of them were taken before this one


@dataclass(frozen=True, slots=True)
class UnknownName:
    """The worker has no handler for the job's name: it is delayed by `delay` seconds, and no attempt is counted."""

    delay: float
    refusals: Refusals  # with this one
    is_known_elsewhere: bool = False  # another worker has a handler for the name


Outcome: TypeAlias = (
    Completed | Failed | Retry | Postponed | RateLimited | WaitingForChildren | Requeued | UnknownName
)


@dataclass(frozen=True, slots=True)
class Undecided:
    """The attempt failed; `function`, of the application, decides when the next one begins. Not an outcome yet."""

    function: BackoffFunction
    attempts_made: int  # the one that just failed included
    backoff: Backoff
    error: BaseException

    def decided(self, given: Given) -> Outcome:
        """The outcome for what the function returned; raises when that is no duration."""
        delay = next_delay(self.attempts_made, self.backoff, retry_after=retry_after(self.error), given=given)
        return _after(self.error, delay)


def decide_outcome(
    error: BaseException,
    *,
    attempts_made: int,
    max_attempts: int,
    backoff: Backoff | None,
    options: WorkerOptions,
    rng: Random = random.random,
) -> Outcome | Undecided:
    """What follows from `error`. `attempts_made` counts the attempts before this one."""
    signal = _signal(error)
    if signal is not None:
        return signal
    limit = options.max_attempts or max_attempts
    known = known_category(error, rules=options.error_rules)
    if (known or ErrorCategory(options.unknown_errors)) is ErrorCategory.PERMANENT:
        return _failed(error, _kind_of(error), is_unknown=known is None)
    if attempts_made + 1 >= limit:
        return _failed(error, "timeout" if isinstance(error, JobTimedOut) else "transient_exhausted")
    return _retry(error, attempts_made + 1, backoff, options, rng)


def judge_name(
    name: str,
    known: Sequence[str],
    before: Refusals | None,
    *,
    now_ms: int,
    options: WorkerOptions,
    rng: Random = random.random,
    is_known_elsewhere: bool = False,
) -> Failed | UnknownName:
    """Returns the outcome of a job for whose name there is no handler; `before` are its refusals up to now.

    They count only while no running worker has the name: a job that others are too busy for neither waits longer nor
    fails.
    """
    if options.unknown_names == "fail":
        return _failed(PermanentError(_no_handler_text(name, known)), "permanent")
    if is_known_elsewhere:
        return UnknownName(Refusals.delay_for_others(rng), Refusals(1, now_ms), is_known_elsewhere=True)
    refusals = Refusals.one_more(before, now_ms)
    if refusals.seconds(now_ms) < GIVE_UP_AFTER:
        return UnknownName(refusals.delay(rng), refusals)
    times = f"put back {refusals.count - 1} times within {refusals.seconds(now_ms) / 60:.0f} minutes"
    remedy = "start a worker that knows the name, then retry the job"
    return _failed(PermanentError(f"{_no_handler_text(name, known)}; {times}: {remedy}"), "permanent")


def _no_handler_text(name: str, known: Sequence[str]) -> str:
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    listed = ", ".join(sorted(known)[:_MOST_NAMES])
    return f"no handler for jobs named {name!r}; this worker has {listed}{more}"


def _kind_of(error: BaseException) -> FailureReason:
    if isinstance(error, JobCancelled):
        return "cancelled"
    if isinstance(error, JobExpired):
        return "expired"
    return "stalled" if isinstance(error, StalledTooOften) else "permanent"


def _signal(error: BaseException) -> Outcome | None:
    match error:
        case Postpone():
            return Postponed(error.delay)
        case RateLimitError():
            return RateLimited(error.delay)
        case WaitingChildrenError():
            return WaitingForChildren(error.moved)
        case Requeue():
            return Requeued(str(error) or "requeued")
        case _:
            return None


def _retry(
    error: BaseException, attempts_made: int, backoff: Backoff | None, options: WorkerOptions, rng: Random
) -> Outcome | Undecided:
    chosen = backoff or options.default_backoff
    try:
        function = custom_function(chosen, options.backoffs)
    except UnknownBackoff as problem:
        return no_retry(error, problem)
    if function is not None and chosen is not None:
        return Undecided(function, attempts_made, chosen, error)
    delay = next_delay(
        attempts_made,
        chosen,
        jitter=options.backoff_jitter,
        max_delay=options.max_backoff_delay,
        retry_after=retry_after(error),
        rng=rng,
    )
    return _after(error, delay)


def no_retry(error: BaseException, problem: BaseException) -> Failed:
    """The job fails because its backoff is missing here, gave nonsense, or raised."""
    reason = f"{reason_of(error)} (no retry: {reason_of(problem)})"
    return Failed(reason, stack_of(error), "permanent", error)


def _after(error: BaseException, delay: float | None) -> Outcome:
    if delay is None:
        return _failed(error, "transient_exhausted")
    return Retry(delay, reason_of(error), stack_of(error))


def _failed(error: BaseException, kind: FailureReason, *, is_unknown: bool = False) -> Failed:
    return Failed(reason_of(error), stack_of(error), kind, error, is_unknown)


def reason_of(error: BaseException) -> str:
    """The message of an error, as `failedReason` holds it; its type if it has none, or a meaningless one."""
    kind = type(error).__name__
    message = message_of(error)
    if message and (isinstance(error, KeyError) or not isinstance(error, Exception)):
        message = f"{kind}: {message}"  # the message of KeyError is a key, that of SystemExit a number
    return storable(message or kind)
