"""Lines about jobs of unknown names: one for each name and minute, whatever producers make up."""

from __future__ import annotations

from tests.clocks import SetClock
from toril.worker._unknown_names import MOST_NAMES, OTHER_NAMES, UnknownNameLines


def test_a_line_is_due_once_for_each_name_and_minute_and_has_the_count() -> None:
    clock = SetClock()
    lines = UnknownNameLines(clock)
    assert [lines.due("a") for _ in range(3)] == [("a", 1), None, None]
    assert lines.due("b") == ("b", 1)
    clock.now = 59.9
    assert lines.due("a") is None
    clock.now = 60.0
    assert [lines.due("a") for _ in range(2)] == [("a", 4), None]


def test_many_names_share_a_line_and_are_forgotten() -> None:
    clock = SetClock()
    lines = UnknownNameLines(clock)
    said = [lines.due(f"name {number}") for number in range(10_000)]
    assert [one for one in said if one is not None] == [
        *((f"name {number}", 1) for number in range(MOST_NAMES)),
        (OTHER_NAMES, 1),
    ]
    assert len(vars(lines)["_unlogged"]) <= MOST_NAMES + 1
    clock.now = 61.0
    assert lines.due("late") == ("late", 1)
    assert len(vars(lines)["_next_line_at"]) == len(vars(lines)["_unlogged"]) == 1
