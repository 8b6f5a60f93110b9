"""Outcomes: what follows from an error, as a pure function."""

from __future__ import annotations

import dataclasses

import pytest

from toril.errors import (
    InvalidOption,
    JobCancelled,
    JobTimedOut,
    PermanentError,
    Postpone,
    RateLimitError,
    Requeue,
    TransientError,
    WaitingChildrenError,
)
from toril.protocol.backoff import Backoff
from toril.protocol.classify import ErrorCategory, by_type
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Postponed,
    RateLimited,
    Requeued,
    Retry,
    Undecided,
    WaitingForChildren,
    decide_outcome,
    no_retry,
    reason_of,
)
from toril.protocol.stack_trace import stack_of
from toril.protocol.worker_options import WorkerOptions


def judged(
    error: BaseException,
    *,
    made: int = 0,
    allowed: int = 3,
    backoff: Backoff | None = None,
    options: WorkerOptions | None = None,
) -> Outcome | Undecided:
    return decide_outcome(
        error,
        attempts_made=made,
        max_attempts=allowed,
        backoff=backoff,
        options=options or WorkerOptions(),
        rng=lambda: 0.5,
    )


def test_a_transient_error_is_retried_while_attempts_are_left() -> None:
    backoff = Backoff.exponential(1)
    outcomes = [judged(ConnectionError("gone"), made=made, backoff=backoff) for made in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Retry, Retry, Failed]
    first, second, last = outcomes
    assert isinstance(first, Retry)
    assert isinstance(second, Retry)
    assert isinstance(last, Failed)
    assert [first.delay, second.delay] == pytest.approx([1.0, 2.0])
    assert (last.reason, last.kind) == ("gone", "transient_exhausted")


def test_a_permanent_error_fails_at_once() -> None:
    assert judged(PermanentError("no")) == Failed("no", stack_of(PermanentError("no")), "permanent")


def test_an_unknown_error_is_permanent_unless_the_worker_says_otherwise() -> None:
    assert isinstance(judged(KeyError("x")), Failed)
    assert isinstance(judged(KeyError("x"), options=WorkerOptions(unknown_errors="transient")), Retry)
    assert isinstance(judged(PermanentError(), options=WorkerOptions(unknown_errors="transient")), Failed)


def test_the_users_rules_come_first() -> None:
    options = WorkerOptions(error_rules=[by_type({ConnectionError: ErrorCategory.PERMANENT})])
    assert isinstance(judged(ConnectionError(), options=options), Failed)


def test_the_workers_attempts_override_the_jobs() -> None:
    assert isinstance(
        judged(ConnectionError(), made=4, allowed=3, options=WorkerOptions(max_attempts=9)), Retry
    )
    assert isinstance(
        judged(ConnectionError(), made=0, allowed=3, options=WorkerOptions(max_attempts=1)), Failed
    )


def test_a_job_without_a_backoff_is_retried_at_once_unless_the_worker_has_one() -> None:
    assert judged(ConnectionError("x")) == Retry(0.0, "x", stack_of(ConnectionError("x")))
    outcome = judged(ConnectionError("x"), options=WorkerOptions(backoff_delay=2, backoff_jitter=0))
    assert isinstance(outcome, Retry)
    assert outcome.delay == 2


def test_the_far_sides_wish_is_respected() -> None:
    outcome = judged(TransientError("busy", retry_after=40), backoff=Backoff.fixed(1))
    assert isinstance(outcome, Retry)
    assert outcome.delay == 40


def test_a_custom_backoff_that_is_missing_ends_the_job() -> None:
    missing = judged(ConnectionError("gone"), backoff=Backoff.custom("lunar"))
    assert isinstance(missing, Failed)
    assert "there is no backoff 'lunar'" in missing.reason


def test_a_custom_backoff_is_not_called_but_asked_for() -> None:
    function = lambda made, error: 5  # noqa: E731
    options = WorkerOptions(backoffs={"lunar": function})
    error = TransientError("busy", retry_after=3)
    undecided = judged(error, backoff=Backoff.custom("lunar"), options=options)
    assert isinstance(undecided, Undecided)
    assert (undecided.function, undecided.attempts_made, undecided.error) == (function, 1, error)
    waits = undecided.decided(4)
    assert isinstance(waits, Retry)
    assert (waits.delay, waits.reason) == (4, "busy")
    assert undecided.decided(1) == dataclasses.replace(waits, delay=3)
    assert isinstance(undecided.decided(None), Failed)
    with pytest.raises(InvalidOption, match="backoff 'lunar'"):
        undecided.decided(-1)
    exhausted = judged(error, made=2, backoff=Backoff.custom("lunar"), options=options)
    assert isinstance(exhausted, Failed)


@pytest.mark.parametrize(
    ("signal", "outcome"),
    [
        (Postpone(5), Postponed(5)),
        (RateLimitError(3), RateLimited(3)),
        (RateLimitError(), RateLimited(None)),
        (WaitingChildrenError(), WaitingForChildren()),
        (Requeue("not now"), Requeued("not now")),
        (Requeue(), Requeued()),
    ],
    ids=repr,
)
def test_a_handler_steers_its_job_by_raising(signal: Exception, outcome: Outcome) -> None:
    assert judged(signal) == outcome


def test_a_failure_says_of_which_kind_it_is() -> None:
    timed_out = judged(JobTimedOut("7", 1), made=2)
    cancelled = judged(JobCancelled("7"))
    assert isinstance(timed_out, Failed)
    assert isinstance(cancelled, Failed)
    assert (timed_out.kind, cancelled.kind) == ("timeout", "cancelled")
    assert isinstance(judged(JobTimedOut("7", 1)), Retry)


def test_a_reason_is_never_empty_and_always_storable() -> None:
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("\ud800")) == "?"
    assert len(reason_of(ValueError("x" * 100_000))) == 16_001


def socket_that_breaks() -> None:
    raise ConnectionError("below")


def fail_because_of_something() -> None:
    try:
        socket_that_breaks()
    except ConnectionError as below:
        raise RuntimeError("above") from below


class Unprintable(ConnectionError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_error_that_cannot_be_printed_is_named_by_its_type() -> None:
    assert reason_of(Unprintable()) == "Unprintable"
    assert isinstance(judged(Unprintable()), Retry)


def test_a_custom_backoff_that_raises_ends_the_job_and_says_so() -> None:
    outcome = no_retry(ConnectionError("gone"), ZeroDivisionError("no pause today"))
    assert outcome.reason == "gone (no retry: no pause today)"


def test_a_stack_trace_shows_the_cause() -> None:
    with pytest.raises(RuntimeError) as above:
        fail_because_of_something()
    trace = stack_of(above.value)
    assert "below" in trace
    assert "above" in trace
    assert "test_outcome.py" in trace


def test_a_completed_job_has_a_value() -> None:
    assert Completed({"ok": True}).value == {"ok": True}
