"""Refusals: how long a job waits that a worker has no handler for, and what is noted with it."""

from __future__ import annotations

from typing import Any

import pytest

from toril.protocol.outcome import Failed, UnknownName, judge_name
from toril.protocol.refusals import Refusals
from toril.protocol.worker_options import WorkerOptions

NOW = 1_700_000_000_000
HOUR = 3_600_000


def judged(before: Refusals | None, *, now_ms: int = NOW, rng: float = 0.5, **options: Any) -> Any:
    return judge_name(
        "new", ("b", "a"), before, now_ms=now_ms, options=WorkerOptions(**options), rng=lambda: rng
    )


def test_the_delay_doubles_from_a_second_to_a_minute() -> None:
    delays, before = [], None
    for _ in range(9):
        outcome = judged(before)
        assert isinstance(outcome, UnknownName)
        delays.append(outcome.delay)
        before = outcome.refusals
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert before == Refusals(9, NOW)


def test_the_delay_is_spread_by_a_fifth_each_way() -> None:
    assert judged(None, rng=0.0).delay == pytest.approx(0.8)
    assert judged(Refusals(50, NOW), rng=0.0).delay == pytest.approx(48)
    assert judged(Refusals(50, NOW), rng=1.0).delay == pytest.approx(72)


def test_a_job_fails_an_hour_after_its_first_refusal() -> None:
    before = Refusals(63, NOW)
    assert isinstance(judged(before, now_ms=NOW + HOUR - 1), UnknownName)
    failed = judged(before, now_ms=NOW + HOUR)
    assert isinstance(failed, Failed)
    assert failed.reason == (
        "no handler for jobs named 'new'; this worker has a, b; put back 63 times within 60 minutes: "
        "start a worker that knows the name, then retry the job"
    )
    assert failed.kind == "permanent"


def test_a_worker_may_fail_such_jobs_at_once() -> None:
    failed = judged(None, unknown_names="fail")
    assert isinstance(failed, Failed)
    assert failed.reason == "no handler for jobs named 'new'; this worker has a, b"


def test_a_worker_with_many_handlers_names_some_of_them() -> None:
    names = [f"h{number:03}" for number in range(500)]
    failed = judge_name("new", names, None, now_ms=NOW, options=WorkerOptions(unknown_names="fail"))
    assert isinstance(failed, Failed)
    assert failed.reason.endswith("h018, h019 and 480 more")


def test_a_first_refusal_in_the_future_is_taken_as_now() -> None:
    outcome = judged(Refusals(1, NOW + HOUR))
    assert outcome.refusals == Refusals(2, NOW)


def test_a_note_in_a_job_belongs_to_the_pickup_before() -> None:
    note = Refusals(3, NOW).to_field(7).encode()
    assert Refusals.from_field(note, 8) == Refusals(3, NOW)
    assert Refusals.from_field(note, 9) is None  # somebody else took the job in between
    assert Refusals.from_field(note, 7) is None


@pytest.mark.parametrize("raw", [None, b"", b"x", b"1 2", b"1 2 3 4", b"-1 2 7", b"1 2.5 7", b"\xff 1 7"])
def test_a_note_that_cannot_be_read_is_none(raw: bytes | None) -> None:
    assert Refusals.from_field(raw, 8) is None


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, {"count": 1}, {"count": "1", "first_ms": 2}, {"count": True, "first_ms": 2}]
)
def test_a_note_in_an_envelope_that_cannot_be_read_is_none(value: Any) -> None:
    assert Refusals.from_meta(value) is None


def test_a_note_in_an_envelope_is_read_as_it_was_written() -> None:
    assert Refusals.from_meta(Refusals(3, NOW).to_meta()) == Refusals(3, NOW)
