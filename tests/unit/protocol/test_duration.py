"""Durations and times at the border to the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import InvalidOption
from toril.protocol.duration import datetime_to_ms, ms_to_datetime, to_ms, to_seconds


@pytest.mark.parametrize(("value", "seconds"), [(2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (0, 0.0)])
def test_seconds_and_timedeltas_are_durations(value: Any, seconds: float) -> None:
    assert to_seconds("delay", value) == seconds


@pytest.mark.parametrize(
    "value", [-1, timedelta(seconds=-1), float("nan"), float("inf"), True, "2", None, 10**400, 1e12]
)
def test_anything_else_is_refused_with_the_field(value: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        to_seconds("delay", value)
    assert refused.value.field == "delay"


def test_a_positive_duration_has_at_least_a_millisecond() -> None:
    assert to_seconds("lock", 0.001, positive=True) == 0.001
    with pytest.raises(InvalidOption, match="one millisecond"):
        to_seconds("lock", 0, positive=True)


@given(st.integers(1, 4_000_000_000_000))
def test_milliseconds_make_the_round_trip(milliseconds: int) -> None:
    assert datetime_to_ms("timestamp", ms_to_datetime(milliseconds)) == milliseconds
    assert to_ms(milliseconds / 1000) == milliseconds


def test_a_time_in_another_zone_is_the_same_moment() -> None:
    zurich = datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert datetime_to_ms("timestamp", zurich) == datetime_to_ms(
        "timestamp", datetime(2025, 1, 1, tzinfo=UTC)
    )


@pytest.mark.parametrize("value", [datetime(2025, 1, 1), 1700000000000, datetime(1960, 1, 1, tzinfo=UTC)])  # noqa: DTZ001
def test_a_time_without_a_zone_or_before_1970_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption):
        datetime_to_ms("timestamp", value)
