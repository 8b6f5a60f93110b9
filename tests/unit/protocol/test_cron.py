"""Cron patterns: when they come true, and which are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from toril.errors import InvalidOption
from toril.protocol.cron import Cron, zone_of

ZURICH = "Europe/Zurich"


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone_of(zone))


@pytest.mark.parametrize(
    ("pattern", "after", "due"),
    [
        ("* * * * *", "2025-06-01 12:00:00", "2025-06-01 12:01:00"),
        ("* * * * * *", "2025-06-01 12:00:00.500", "2025-06-01 12:00:01"),
        ("0 3 * * *", "2025-06-01 03:00:00", "2025-06-02 03:00:00"),
        ("*/15 9-17 * * mon-fri", "2025-06-06 17:45:00", "2025-06-09 09:00:00"),
        ("30 2 29 2 *", "2025-01-01", "2028-02-29 02:30:00"),
        ("0 0 L * *", "2025-02-01", "2025-02-28"),
        ("0 0 * * 5L", "2025-06-01", "2025-06-27"),
        ("0 0 * * 1#2", "2025-06-01", "2025-06-09"),
        ("0 0 13 * 5", "2025-06-01", "2025-06-06"),  # either is enough: Friday comes before the 13th
        ("0 0 * * 7", "2025-06-02", "2025-06-08"),
        ("0 0 ? jan ?", "2025-06-01", "2026-01-01"),
        ("5/20 * * * *", "2025-06-01 12:06:00", "2025-06-01 12:25:00"),
        ("@yearly", "2025-06-01", "2026-01-01"),
        ("@hourly", "2025-06-01 12:00:01", "2025-06-01 13:00:00"),
    ],
)
def test_a_pattern_comes_true_at_the_next_time_it_names(pattern: str, after: str, due: str) -> None:
    assert Cron.parse(pattern).next_after(at(after)) == at(due)


@pytest.mark.parametrize("pattern", ["0 3 * *", "* * *", "5", "", "0 0 3 * * * *"])
def test_a_pattern_that_somebody_writes_has_five_fields_or_six(pattern: str) -> None:
    with pytest.raises(InvalidOption, match=r"has \d fields"):
        Cron.given(pattern)
    for right in ("0 3 * * *", "0 0 3 * * *", " @daily "):
        assert Cron.given(right) == Cron.parse(right)


def test_an_unknown_nickname_is_refused_with_the_known_ones_and_the_option_for_intervals() -> None:
    with pytest.raises(InvalidOption, match=r"@every 5.*is unknown.*@daily.*every="):
        Cron.given("@every 5")


def test_a_stored_pattern_of_fewer_fields_means_what_it_means_to_node() -> None:
    due = Cron.parse("0 3 * *").next_after(at("2025-01-01 12:00:00"))
    assert due == at("2025-01-03 00:00:00")
    assert Cron.parse("0 3 * *").next_after(due) == at("2025-01-03 00:01:00")


def test_a_time_that_clocks_skip_runs_an_hour_later() -> None:
    cron = Cron.parse("30 2 * * *")
    due = cron.next_after(at("2025-03-29 12:00", ZURICH), zone_of(ZURICH))
    assert due == datetime(2025, 3, 30, 1, 30, tzinfo=UTC)  # half past three of the new time


def test_a_time_that_comes_twice_runs_once() -> None:
    cron, zone = Cron.parse("30 2 * * *"), zone_of(ZURICH)
    first = cron.next_after(at("2025-10-25 12:00", ZURICH), zone)
    assert first == datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
    assert cron.next_after(first, zone) == datetime(2025, 10, 27, 1, 30, tzinfo=UTC)


def test_a_pattern_of_every_hour_runs_in_both_hours_of_the_same_name() -> None:
    cron, zone = Cron.parse("0 * * * *"), zone_of(ZURICH)
    moment = datetime(2025, 10, 25, 23, 30, tzinfo=UTC)
    hours = []
    for _ in range(3):
        found = cron.next_after(moment, zone)
        assert found is not None
        moment = found
        hours.append(found.astimezone(zone).hour)
    assert hours == [2, 2, 3]


def test_a_pattern_that_never_comes_true_says_so() -> None:
    assert Cron.parse("0 0 31 4,6 *").next_after(at("2025-01-01")) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "a * * * *",
        "* * * foo *",
        "* * * * L",
        "* * * * 1#6",
        "* * * * 1,2#3",
        "1,,2 * * * *",
        "* * 5L * *",
        "0 0 30 2 *",
        "1/2/3 * * * *",
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        Cron.parse(pattern)
    assert refused.value.field == "cron"


def test_a_pattern_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidOption):
        Cron.parse(5)  # type: ignore[arg-type]


def test_an_unknown_zone_is_refused_and_none_means_that_of_the_machine() -> None:
    with pytest.raises(InvalidOption):
        zone_of("Mars/Olympus")
    assert zone_of(None) is zone_of(None)


# --- the parser of BullMQ 6 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "five", "six"),
    [
        # A range of all days counts as every day for BullMQ 5 only.
        ("0 0 1-31 * 1", "2025-06-02", "2025-06-02"),
        ("0 0 10 * 0-7", "2025-06-10", "2025-06-02"),
        # The second Monday, or the 20th: BullMQ 5 wants the 20th to be in the second week.
        ("0 0 20 * 1#2", "2025-06-09", "2025-06-09"),
    ],
)
def test_the_generations_differ_where_their_parsers_do(pattern: str, five: str, six: str) -> None:
    moment = at("2025-06-01")
    assert Cron.parse(pattern, 5).next_after(moment) == at(five)
    assert Cron.parse(pattern, 6).next_after(moment) == at(six)


def test_a_hashed_pattern_is_read_alike_by_both_and_depends_on_its_seed() -> None:
    patterns = [Cron.parse("H H(9-16) * * *", generation, seed="nightly") for generation in (5, 6)]
    assert patterns[0] == patterns[1]
    (hour,) = patterns[0].hours
    assert 9 <= hour <= 16
    minutes = {Cron.parse("H * * * *", seed=f"s{i}").minutes for i in range(30)}
    assert len(minutes) > 10


@pytest.mark.parametrize("pattern", ["1,1 * * * *", "H(5-1) * * * *", "H/0 * * * *", "* " * 600])
def test_a_pattern_that_the_sixth_generation_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOption):
        Cron.parse(pattern, 6)


def test_names_that_only_the_sixth_generation_knows_are_known() -> None:
    assert Cron.given("@weekdays").next_after(at("2025-06-07 12:00")) == at("2025-06-09")
