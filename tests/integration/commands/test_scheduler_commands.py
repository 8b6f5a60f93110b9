"""Schedulers: one next job for each, made by the script that upstream uses, whoever repeats the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from toril.commands import read, schedulers
from toril.commands.schedulers import SchedulerToAdd, next_job_options
from toril.errors import SchedulerIdCollision

MINUTE = 60_000


def tick(**more: Any) -> SchedulerToAdd:
    given = {"repeat": {"every": MINUTE}, "next_ms": None, "options": {"attempts": 2}} | more
    return SchedulerToAdd(id="tick", name="draw", data=b'{"n":1}', now_ms=NOW, **given)


def test_a_scheduler_makes_its_next_job(driver: QueueDriver) -> None:
    job_id, delay = driver.run(schedulers.add_scheduler(driver.keys, tick()))
    assert job_id.startswith("repeat:tick:")
    assert 0 <= delay <= MINUTE
    assert driver.run(schedulers.count_schedulers(driver.keys)) == 1
    ((name, due),) = driver.run(schedulers.list_schedulers(driver.keys))
    assert (name, f"repeat:tick:{due}") == ("tick", job_id)
    assert driver.run(schedulers.next_run_ms(driver.keys, "tick")) == due
    fields = driver.run(schedulers.get_scheduler(driver.keys, "tick"))
    assert (fields["name"], fields["every"]) == ("draw", str(MINUTE))


def test_adding_it_again_makes_no_second_job(driver: QueueDriver) -> None:
    add = schedulers.add_scheduler(driver.keys, tick())
    assert driver.run(add) == driver.run(add)
    counts = driver.run(read.get_counts(driver.keys))
    assert counts["delayed"] + counts["wait"] == 1


def test_the_job_after_the_next_is_made_once(driver: QueueDriver) -> None:
    job_id, _ = driver.run(schedulers.add_scheduler(driver.keys, tick(next_ms=NOW)))
    driver.take()
    following = next_job_options(
        "tick", {"attempts": 2}, {"every": MINUTE, "count": 1}, next_ms=NOW + MINUTE, now_ms=NOW
    )
    advance = schedulers.advance_scheduler(
        driver.keys, "tick", job_id=job_id, data=b"{}", options=following, next_ms=NOW + MINUTE, now_ms=NOW
    )
    made = driver.run(advance)
    assert made is not None
    assert driver.run(advance) is None
    counts = driver.run(read.get_counts(driver.keys))
    assert counts["delayed"] == 1


def test_a_scheduler_that_is_gone_makes_nothing(driver: QueueDriver) -> None:
    advance = schedulers.advance_scheduler(
        driver.keys, "gone", job_id="x", data=b"{}", options={}, next_ms=NOW, now_ms=NOW
    )
    assert driver.run(advance) is None
    assert driver.run(schedulers.remove_scheduler(driver.keys, "gone")) is False
    assert driver.run(schedulers.get_scheduler(driver.keys, "gone")) == {}
    assert driver.run(schedulers.next_run_ms(driver.keys, "gone")) is None


def test_removing_a_scheduler_takes_its_next_job_along(driver: QueueDriver) -> None:
    daily = tick(repeat={"pattern": "0 3 * * *"}, next_ms=NOW + MINUTE)
    job_id, _ = driver.run(schedulers.add_scheduler(driver.keys, daily))
    assert driver.run(schedulers.remove_scheduler(driver.keys, "tick")) is True
    assert driver.run(read.get_state(driver.keys, job_id)) == "unknown"
    assert driver.run(schedulers.list_schedulers(driver.keys, ascending=False)) == []


def test_an_id_that_another_job_has_is_refused(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
    taken = NOW + MINUTE
    raw_command("HSET", driver.keys.job(f"repeat:tick:{taken}"), "name", "other")
    raw_command("ZADD", driver.keys.completed, 1, f"repeat:tick:{taken}")
    with pytest.raises(SchedulerIdCollision):
        driver.run(
            schedulers.add_scheduler(driver.keys, tick(repeat={"pattern": "* * * * *"}, next_ms=taken))
        )


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
