"""Backoff: the specified delays, BullMQ's jitter, and nothing that overflows."""

from __future__ import annotations

import functools
import warnings
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import InvalidOption, MalformedValue, OptionWarning, UnknownBackoff
from toril.protocol.backoff import (
    Backoff,
    call_backoff,
    custom_function,
    envelope_delay,
    is_backoff_function,
    next_delay,
    reconnect_delay,
)

unit = st.floats(0, 1, exclude_max=True)


def middle() -> float:
    """A random number that leaves a symmetric jitter without effect."""
    return 0.5


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 16),
        (10, 512),
        (11, 1024),
        (12, 2048),
        (13, 3600),
        (15, 3600),
        (10**6, 3600),
    ],
)
def test_exponential_delays_double_up_to_an_hour(attempt: int, seconds: float) -> None:
    assert next_delay(attempt, Backoff.exponential(1), rng=middle) == pytest.approx(seconds)
    assert next_delay(attempt, Backoff.exponential(1), jitter=0) == seconds


@given(st.integers(1, 200), unit)
def test_the_workers_jitter_stays_within_a_fifth(attempt: int, number: float) -> None:
    exact = next_delay(attempt, Backoff.exponential(1), jitter=0, max_delay=1e30)
    delay = next_delay(attempt, Backoff.exponential(1), max_delay=1e30, rng=lambda: number)
    assert exact is not None
    assert delay is not None
    assert 0.8 * exact * 0.999 <= delay <= 1.2 * exact * 1.001


@given(st.integers(1, 60), unit, st.floats(0.01, 1))
def test_a_jobs_own_jitter_goes_down_only_as_in_bullmq(attempt: int, number: float, jitter: float) -> None:
    exact = 2.0 ** (attempt - 1)
    backoff = Backoff.exponential(1, jitter=jitter)
    delay = next_delay(attempt, backoff, max_delay=1e30, rng=lambda: number)
    assert delay is not None
    assert exact * (1 - jitter) * 0.999 <= delay <= exact * 1.001


def test_a_jobs_own_jitter_of_zero_switches_the_workers_off() -> None:
    assert next_delay(3, Backoff.exponential(1, jitter=0), rng=lambda: 0.9) == 4


def test_a_fixed_delay_is_neither_jittered_nor_capped_by_the_worker() -> None:
    assert next_delay(9, Backoff.fixed(7), rng=lambda: 0.9, max_delay=1) == 7
    assert next_delay(9, Backoff.fixed(10, jitter=0.5), rng=lambda: 0.0) == 5


def test_a_jobs_own_cap_wins_over_the_workers() -> None:
    assert next_delay(10, Backoff.exponential(1, max_delay=5), jitter=0) == 5
    assert next_delay(13, Backoff.exponential(1, max_delay=5000), jitter=0) == 4096


def test_no_backoff_means_no_pause() -> None:
    assert next_delay(3, None) == 0


def test_the_far_side_may_ask_for_a_longer_pause_but_not_for_a_shorter_one() -> None:
    assert next_delay(1, Backoff.fixed(2), retry_after=10) == 10
    assert next_delay(1, Backoff.fixed(20), retry_after=10) == 20
    assert next_delay(1, None, retry_after=10) == 10


def arguments_of(*words: Any, **named: Any) -> Any:
    """What a custom function was called with."""
    return (*words, *named.values())


class Lunar:
    def __call__(self, attempts_made: int, error: BaseException | None, job: Any) -> Any:
        return arguments_of(attempts_made, error, job)


def once_more(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*words: Any) -> Any:
        return function(*words)

    return wrapper


def with_session(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(attempts_made: int, error: BaseException | None) -> Any:
        return function(attempts_made, error, "session")

    return wrapper


ERROR = OSError()
FORMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "two": (lambda made, error: (made, error), (2, ERROR)),
    "any number": (arguments_of, (2, ERROR)),
    "a third of its own": (lambda made, error, base=5: arguments_of(made, error, base), (2, ERROR, 5)),
    "a third that must be given": (lambda made, error, task: (made, error, task), (2, ERROR, "job")),
    "a third called job": (lambda made, error, job=None: arguments_of(made, error, job), (2, ERROR, "job")),
    "job by name": (lambda made, error, *, job: arguments_of(made, error, job), (2, ERROR, "job")),
    "an object": (Lunar(), (2, ERROR, "job")),
    "wrapped, as it comes": (once_more(Lunar().__call__), (2, ERROR, "job")),
    "wrapped, with more": (
        with_session(lambda made, error, session: (made, error, session)),
        (2, ERROR, "session"),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_custom_backoff_is_a_function_of_attempts_and_error_and_perhaps_of_the_job(form: str) -> None:
    function, words = FORMS[form]
    assert is_backoff_function(function)
    assert call_backoff(function, 2, ERROR, "job") == words


@pytest.mark.parametrize(
    "function", [lambda: 5, lambda _made: 5, lambda _a, _b, _c, _d: 5, lambda _a, *, job: 5]
)
def test_a_function_of_another_shape_does_not_fit(function: Any) -> None:
    assert not is_backoff_function(function)


def test_what_a_custom_function_gave_is_a_duration_or_the_end() -> None:
    lunar = Backoff.custom("lunar")
    assert next_delay(2, lunar, given=timedelta(seconds=28)) == 28
    assert next_delay(2, lunar, given=3, retry_after=10) == 10
    assert next_delay(2, lunar, given=None) is None
    with pytest.raises(InvalidOption):
        next_delay(2, lunar, given=-1.0)


def test_a_custom_backoff_must_be_known() -> None:
    with pytest.raises(UnknownBackoff, match="lunar"):
        custom_function(Backoff.custom("lunar"), {})
    assert custom_function(Backoff.fixed(1), {}) is None
    assert custom_function(None, {}) is None


def test_a_backoff_of_nothing_is_no_delay() -> None:
    assert Backoff.fixed(0).to_wire() == {"type": "fixed", "delay": 0}
    assert next_delay(3, Backoff.fixed(0)) == 0
    with pytest.raises(InvalidOption):
        Backoff.exponential(0)


@pytest.mark.parametrize(
    ("backoff", "wire"),
    [
        (Backoff.fixed(2), {"type": "fixed", "delay": 2000}),
        (Backoff.exponential(), {"type": "exponential", "delay": 1000}),
        (
            Backoff.exponential(timedelta(milliseconds=5), max_delay=60, jitter=0.5),
            {"type": "exponential", "delay": 5, "jitter": 0.5, "maxDelay": 60_000},
        ),
        (Backoff.custom("lunar"), {"type": "lunar"}),
        (Backoff.custom("lunar", 3), {"type": "lunar", "delay": 3000}),
    ],
)
def test_a_backoff_is_spelled_as_bullmq_spells_it(backoff: Backoff, wire: dict[str, Any]) -> None:
    assert backoff.to_wire() == wire
    assert Backoff.from_wire(wire) == backoff


def test_what_other_clients_write_is_understood() -> None:
    assert Backoff.from_wire(None) is None
    assert Backoff.from_wire(False) is None
    assert Backoff.from_wire(500) == Backoff("fixed", 0.5)
    assert Backoff.from_wire({"type": "fixed", "delay": 0}) == Backoff("fixed", 0.0)
    assert Backoff.from_wire({"type": "exponential"}) == Backoff("exponential", 0.0)


@pytest.mark.parametrize(
    "wire", [{}, {"type": 3}, {"type": "fixed", "delay": "x"}, {"type": "fixed", "delay": -1}, "x", True]
)
def test_a_malformed_backoff_is_a_permanent_error(wire: Any) -> None:
    with pytest.raises(MalformedValue):
        Backoff.from_wire(wire)


@pytest.mark.parametrize("delay", [-1, True, float("nan"), float("inf"), "1", None, 0.0001])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        Backoff.fixed(delay)
    assert refused.value.field == "backoff.delay"


@pytest.mark.parametrize("jitter", [-0.1, 1.1, True, "x", float("nan")])
def test_a_jitter_is_a_number_from_zero_to_one(jitter: Any) -> None:
    with pytest.raises(InvalidOption, match="from 0 to 1"):
        Backoff.fixed(1, jitter=jitter)


def test_a_cap_below_the_delay_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"backoff\.max_delay: is below"):
        Backoff.exponential(10, max_delay=5)


def test_a_custom_backoff_cannot_take_a_built_in_name() -> None:
    with pytest.raises(InvalidOption, match=r"use Backoff\.fixed"):
        Backoff.custom("fixed")


def test_more_than_an_hour_asks_whether_milliseconds_were_meant() -> None:
    with pytest.warns(OptionWarning, match="seconds, not milliseconds"):
        Backoff.exponential(5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Backoff.exponential(3600)


@given(st.integers(0, 10**6), unit)
def test_envelopes_wait_at_most_five_minutes(attempt: int, number: float) -> None:
    assert envelope_delay(attempt, rng=lambda: number) == min(2.0 ** min(attempt, 60) + number, 300)


def test_envelopes_wait_from_one_second_on() -> None:
    assert [envelope_delay(attempt, rng=lambda: 0.0) for attempt in (0, 1, 2, 9)] == [1, 2, 4, 300]


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 0.1), (4, 1.6), (9, 30), (500, 30)])
def test_reconnecting_starts_fast_and_slows_down(attempt: int, seconds: float) -> None:
    assert reconnect_delay(attempt, rng=middle) == pytest.approx(seconds)
    assert reconnect_delay(attempt, rng=lambda: 0.0) == pytest.approx(seconds * 0.8)
