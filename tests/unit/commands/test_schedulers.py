"""Schedulers: one next job for each, made by the script that upstream uses, whoever repeats the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.commands.conftest import NOW, Hand
from toril.commands import read, schedulers
from toril.commands.schedulers import SchedulerToAdd, next_job_options
from toril.errors import SchedulerIdCollision

MINUTE = 60_000


def tick(**more: Any) -> SchedulerToAdd:
    given = {"repeat": {"every": MINUTE}, "next_ms": None, "options": {"attempts": 2}} | more
    return SchedulerToAdd(id="tick", name="draw", data=b'{"n":1}', now_ms=NOW, **given)


def test_a_scheduler_makes_its_next_job(hand: Hand) -> None:
    job_id, delay = hand.run(schedulers.add_scheduler(hand.keys, tick()))
    assert job_id.startswith("repeat:tick:")
    assert 0 <= delay <= MINUTE
    assert hand.run(schedulers.count_schedulers(hand.keys)) == 1
    ((name, due),) = hand.run(schedulers.list_schedulers(hand.keys))
    assert (name, f"repeat:tick:{due}") == ("tick", job_id)
    assert hand.run(schedulers.next_of(hand.keys, "tick")) == due
    fields = hand.run(schedulers.get_scheduler(hand.keys, "tick"))
    assert (fields["name"], fields["every"]) == ("draw", str(MINUTE))


def test_adding_it_again_makes_no_second_job(hand: Hand) -> None:
    add = schedulers.add_scheduler(hand.keys, tick())
    assert hand.run(add) == hand.run(add)
    counts = hand.run(read.get_counts(hand.keys))
    assert counts["delayed"] + counts["wait"] == 1


def test_the_job_after_the_next_is_made_once(hand: Hand) -> None:
    job_id, _ = hand.run(schedulers.add_scheduler(hand.keys, tick(next_ms=NOW)))
    hand.take()
    following = next_job_options(
        "tick", {"attempts": 2}, {"every": MINUTE, "count": 1}, next_ms=NOW + MINUTE, now_ms=NOW
    )
    advance = schedulers.advance_scheduler(
        hand.keys, "tick", job_id=job_id, data=b"{}", options=following, next_ms=NOW + MINUTE, now_ms=NOW
    )
    made = hand.run(advance)
    assert made is not None
    assert hand.run(advance) is None
    counts = hand.run(read.get_counts(hand.keys))
    assert counts["delayed"] == 1


def test_a_scheduler_that_is_gone_makes_nothing(hand: Hand) -> None:
    advance = schedulers.advance_scheduler(
        hand.keys, "gone", job_id="x", data=b"{}", options={}, next_ms=NOW, now_ms=NOW
    )
    assert hand.run(advance) is None
    assert hand.run(schedulers.remove_scheduler(hand.keys, "gone")) is False
    assert hand.run(schedulers.get_scheduler(hand.keys, "gone")) == {}
    assert hand.run(schedulers.next_of(hand.keys, "gone")) is None


def test_removing_a_scheduler_takes_its_next_job_along(hand: Hand) -> None:
    daily = tick(repeat={"pattern": "0 3 * * *"}, next_ms=NOW + MINUTE)
    job_id, _ = hand.run(schedulers.add_scheduler(hand.keys, daily))
    assert hand.run(schedulers.remove_scheduler(hand.keys, "tick")) is True
    assert hand.run(read.get_state(hand.keys, job_id)) == "unknown"
    assert hand.run(schedulers.list_schedulers(hand.keys, ascending=False)) == []


def test_an_id_that_another_job_has_is_refused(hand: Hand, spoil: Callable) -> None:
    taken = NOW + MINUTE
    spoil("HSET", hand.keys.job(f"repeat:tick:{taken}"), "name", "other")
    spoil("ZADD", hand.keys.completed, 1, f"repeat:tick:{taken}")
    with pytest.raises(SchedulerIdCollision):
        hand.run(schedulers.add_scheduler(hand.keys, tick(repeat={"pattern": "* * * * *"}, next_ms=taken)))


def test_the_options_of_the_next_job_are_nodes() -> None:
    following = next_job_options(
        "tick",
        {"attempts": 2, "prevMillis": 5},
        {"every": MINUTE, "offset": 7, "count": 3},
        next_ms=NOW + 10,
        now_ms=NOW,
    )
    assert following == {
        "attempts": 2,
        "repeat": {"every": MINUTE, "count": 4},
        "timestamp": NOW,
        "repeatJobKey": "tick",
        "prevMillis": NOW + 10,
        "delay": 10,
    }
    assert "delay" not in next_job_options("tick", {}, {"every": MINUTE}, next_ms=None, now_ms=NOW)
