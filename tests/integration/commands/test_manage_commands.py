"""Changing jobs and queues: what each command does, and which refusal it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import cleaning, manage, read, streams
from toril.commands.command import Command
from toril.commands.manage import MoveStep
from toril.errors import (
    JobBelongsToScheduler,
    JobLocked,
    JobNotFound,
    JobNotInState,
    ParentNotFound,
    QueueHasActiveJobs,
    QueueNotPaused,
    ScriptRefused,
    obliterate_refusal,
)
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport


def state(driver: QueueDriver, job_id: str = "a") -> str:
    return driver.run(read.get_state(driver.keys, job_id))


def fields(driver: QueueDriver, *names: str) -> list[bytes | None]:
    return driver.run(read.get_fields(driver.keys, "a", names))


FinishedState = Literal["failed", "completed"]
MISSING: dict[str, Callable[[QueueKeys], Command[Any]]] = {
    "update data": lambda keys: manage.update_data(keys, "nobody", b"{}"),
    "update progress": lambda keys: manage.update_progress(keys, "nobody", b"1"),
    "log": lambda keys: manage.add_log(keys, "nobody", "line", keep=10),
    "change delay": lambda keys: manage.change_delay(keys, "nobody", delay_ms=1, now_ms=NOW),
    "change priority": lambda keys: manage.change_priority(keys, "nobody", priority=1),
    "reprocess": lambda keys: manage.reprocess(keys, "nobody"),
    "detach": lambda keys: manage.remove_child_dependency(keys, "nobody", "also-nobody"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_job_that_does_not_exist_is_refused_by_name(driver: QueueDriver, what: str) -> None:
    command = MISSING[what](driver.keys)
    with pytest.raises(JobNotFound) as refused:
        driver.run(command)
    assert (refused.value.job_id, refused.value.code) == ("nobody", -1)
    assert refused.value.command == {"toril.retry_finished": "reprocessJob"}.get(command.name, command.name)


class TestAChangeWhoseReplyWasLost:
    """It is sent again: what others did meanwhile stays, and nothing is announced twice."""

    def test_does_not_remove_a_job_that_was_added_meanwhile(self, driver: QueueDriver) -> None:
        driver.add("a")
        removal = manage.remove(driver.keys, "a")
        driver.run(removal)
        driver.add("a")
        driver.run(removal)
        assert state(driver) == "waiting"

    def test_does_not_overwrite_newer_data(self, driver: QueueDriver) -> None:
        driver.add("a")
        change = manage.update_data(driver.keys, "a", b'{"n":1}')
        driver.run(change)
        driver.run(manage.update_data(driver.keys, "a", b'{"n":2}'))
        driver.run(change)
        assert fields(driver, "data") == [b'{"n":2}']

    def test_announces_progress_once(self, driver: QueueDriver) -> None:
        driver.add("a")
        change = manage.update_progress(driver.keys, "a", b"5")
        driver.run(change)
        driver.run(change)
        entries = driver.run(streams.entries(driver.keys.events, "0", "+", 100))
        assert sum(b"progress" in said for _, said in entries) == 1


def test_data_and_progress_are_replaced(driver: QueueDriver) -> None:
    driver.add("a")
    assert driver.run(manage.update_data(driver.keys, "a", b'{"n":2}')) is None
    assert driver.run(manage.update_progress(driver.keys, "a", b"50")) is None
    assert fields(driver, "data", "progress") == [b'{"n":2}', b"50"]


def test_logs_are_counted_and_trimmed(driver: QueueDriver) -> None:
    driver.add("a")
    lengths = [driver.run(manage.add_log(driver.keys, "a", f"line {n}", keep=2)) for n in range(3)]
    assert lengths == [1, 2, 2]
    assert driver.run(manage.add_log(driver.keys, "a", "all", keep=None)) == 3
    lines, count = read.get_logs(driver.keys, "a")
    assert (driver.run(lines), driver.run(count)) == (["line 1", "line 2", "all"], 3)


def test_a_log_that_keeps_no_lines_keeps_none_of_others_either(driver: QueueDriver) -> None:
    driver.add("a")
    assert driver.run(manage.add_log(driver.keys, "a", "of Node", keep=None)) == 1
    assert driver.run(manage.add_log(driver.keys, "a", "line", keep=0)) == 0
    lines, count = read.get_logs(driver.keys, "a")
    assert (driver.run(lines), driver.run(count)) == ([], 0)
    with pytest.raises(JobNotFound):
        driver.run(manage.add_log(driver.keys, "nobody", "line", keep=0))


def test_a_delay_can_be_changed_while_it_lasts(driver: QueueDriver) -> None:
    driver.add("a", delay=60_000)
    driver.run(manage.change_delay(driver.keys, "a", delay_ms=5_000, now_ms=NOW))
    assert fields(driver, "delay") == [b"5000"]
    driver.run(manage.promote(driver.keys, "a"))
    assert state(driver) == "waiting"
    for command in (
        manage.change_delay(driver.keys, "a", delay_ms=1, now_ms=NOW),
        manage.promote(driver.keys, "a"),
    ):
        with pytest.raises(JobNotInState):
            driver.run(command)


def test_a_priority_moves_a_job_between_the_lists(driver: QueueDriver) -> None:
    driver.add("a", "b")
    driver.run(manage.change_priority(driver.keys, "a", priority=5))
    assert state(driver) == "prioritized"
    driver.run(manage.change_priority(driver.keys, "a", priority=0, lifo=True))
    assert state(driver) == "waiting"
    assert driver.take() == ["a"]


@pytest.mark.parametrize("failed", [True, False])
def test_a_finished_job_can_run_again(driver: QueueDriver, failed: bool) -> None:
    driver.add("a")
    driver.take()
    driver.finish("a", failed=failed)
    where: FinishedState = "failed" if failed else "completed"
    other: FinishedState = "completed" if failed else "failed"
    with pytest.raises(JobNotInState):
        driver.run(manage.reprocess(driver.keys, "a", state=other))
    driver.run(manage.reprocess(driver.keys, "a", state=where))
    assert state(driver) == "waiting"
    assert fields(driver, "finishedOn", "failedReason", "returnvalue") == [None, None, None]


def test_many_failed_jobs_are_retried_in_bounded_calls(driver: QueueDriver) -> None:
    ids = [f"j{n}" for n in range(5)]
    driver.add(*ids)
    driver.exchange(*(driver.finished(one, failed=True) for one in driver.take(5)))
    assert driver.run(manage.move_jobs_to_wait(driver.keys, "failed", count=3, until_ms=NOW)) == MoveStep(
        3, True
    )
    assert driver.run(manage.move_jobs_to_wait(driver.keys, "failed", count=3, until_ms=NOW - 1)) == MoveStep(
        0, False
    )
    assert driver.run(manage.move_jobs_to_wait(driver.keys, "failed", count=3, until_ms=NOW)) == MoveStep(
        2, False
    )
    assert driver.run(read.get_counts(driver.keys))["wait"] == 5


def test_all_delayed_jobs_can_be_promoted(driver: QueueDriver) -> None:
    driver.add("a", "b", delay=3_600_000)
    assert driver.run(manage.move_jobs_to_wait(driver.keys, "delayed", count=10)) == MoveStep(2, False)
    assert driver.run(read.get_counts(driver.keys))["wait"] == 2


def test_a_job_is_removed_unless_somebody_works_on_it(driver: QueueDriver) -> None:
    driver.add("a", "b")
    assert driver.run(manage.remove(driver.keys, "a")) is None
    assert state(driver) == "unknown"
    assert driver.run(manage.remove(driver.keys, "a")) is None  # Removing it again changes nothing.
    driver.take()
    with pytest.raises(JobLocked) as refused:
        driver.run(manage.remove(driver.keys, "b"))
    assert refused.value.job_id == "b"


def test_the_next_run_of_a_scheduler_cannot_be_removed_alone(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    raw_command("ZADD", driver.keys.repeat, 1, "tick")
    raw_command("HSET", driver.keys.job("a"), "name", "tick", "rjk", "tick")
    raw_command("HSET", f"{driver.keys.repeat}:tick", "ic", 1)
    raw_command("HSET", driver.keys.job("repeat:tick:1"), "name", "tick", "rjk", "tick")
    with pytest.raises(JobBelongsToScheduler):
        driver.run(manage.remove(driver.keys, "repeat:tick:1"))


def test_a_paused_queue_gives_no_jobs_until_it_is_resumed(driver: QueueDriver) -> None:
    driver.add("a")
    driver.run(manage.pause(driver.keys))
    assert driver.run(read.is_paused(driver.keys)) is True
    assert driver.take() == []
    assert driver.run(read.get_counts(driver.keys))["paused"] == 1
    driver.run(manage.resume(driver.keys))
    assert driver.run(read.is_paused(driver.keys)) is False
    assert driver.take() == ["a"]


@pytest.mark.parametrize(
    "kind", ["completed", "failed", "wait", "active", "delayed", "prioritized", "paused"]
)
def test_clean_removes_what_is_old_enough(
    driver: QueueDriver, raw_command: Callable[..., Any], kind: cleaning.CleanState
) -> None:
    options: dict[str, Any] = {"delayed": {"delay": 5}, "prioritized": {"priority": 1}}.get(kind, {})
    driver.add("a", "b", **options)
    if kind in ("completed", "failed", "active"):
        driver.take(2)
    if kind in ("completed", "failed"):
        driver.exchange(*(driver.finished(one, failed=kind == "failed") for one in "ab"))
    if kind == "active":
        raw_command("DEL", driver.keys.lock("a"), driver.keys.lock("b"))
    if kind == "paused":
        driver.run(manage.pause(driver.keys))
    assert driver.run(cleaning.clean(driver.keys, kind, before_ms=NOW - 1, limit=10)).removed == []
    removed = driver.run(cleaning.clean(driver.keys, kind, before_ms=NOW + 10, limit=10)).removed
    assert sorted(removed) == ["a", "b"]
    assert state(driver) == "unknown"


class TestObliterating:
    def test_needs_a_paused_queue(self, driver: QueueDriver) -> None:
        driver.add("a")
        with pytest.raises(QueueNotPaused):
            driver.run(manage.obliterate(driver.keys, count=10))

    def test_refuses_while_jobs_are_worked_on(self, driver: QueueDriver) -> None:
        driver.add("a")
        driver.take()
        driver.run(manage.pause(driver.keys))
        with pytest.raises(QueueHasActiveJobs):
            driver.run(manage.obliterate(driver.keys, count=10))
        assert driver.run(manage.obliterate(driver.keys, count=10, force=True)) is False
        assert state(driver) == "unknown"

    def test_goes_on_in_bounded_calls(self, driver: QueueDriver) -> None:
        driver.add(*(f"j{n}" for n in range(20)))
        driver.run(manage.pause(driver.keys))
        calls = 1
        while driver.run(manage.obliterate(driver.keys, count=5)):
            calls += 1
        assert calls > 2
        assert sum(driver.run(read.get_counts(driver.keys)).values()) == 0

    def test_names_a_code_nobody_knows(self) -> None:
        assert isinstance(obliterate_refusal(-77), ScriptRefused)
        assert "-77" in str(obliterate_refusal(-77))


def test_a_deduplication_key_can_be_removed_once(driver: QueueDriver) -> None:
    driver.add("a", de={"id": "same"})
    assert driver.run(read.get_deduplication_job_id(driver.keys, "same")) == "a"
    assert driver.run(manage.remove_deduplication_key(driver.keys, "same")) is True
    assert driver.run(manage.remove_deduplication_key(driver.keys, "same")) is False
    assert driver.run(read.get_deduplication_job_id(driver.keys, "same")) is None


class TestAChild:
    @pytest.fixture(autouse=True)
    def family(self, driver: QueueDriver) -> None:
        driver.add("p", waits_for_children=True)
        parent = {"id": "p", "queueKey": driver.keys.qualified}
        driver.add("a", "b", parent=parent, parent_key=driver.keys.job("p"))

    def test_can_be_detached_once(self, driver: QueueDriver) -> None:
        assert driver.run(manage.remove_child_dependency(driver.keys, "a", driver.keys.job("p"))) is True
        assert driver.run(manage.remove_child_dependency(driver.keys, "a", driver.keys.job("p"))) is False

    def test_cannot_be_detached_from_nobody(self, driver: QueueDriver) -> None:
        with pytest.raises(ParentNotFound):
            driver.run(manage.remove_child_dependency(driver.keys, "a", driver.keys.job("nobody")))

    def test_is_removed_with_all_that_wait(self, driver: QueueDriver) -> None:
        driver.run(manage.remove_unprocessed_children(driver.keys, "p"))
        assert (state(driver, "a"), state(driver, "b")) == ("unknown", "unknown")

    def test_is_listed_until_it_is_done(self, driver: QueueDriver) -> None:
        processed, pending = read.get_children(driver.keys, "p")
        assert driver.run(pending) == [driver.keys.job("a"), driver.keys.job("b")]
        driver.take()
        driver.finish("a")
        assert driver.run(processed) == {driver.keys.job("a"): '"done"'}
        assert driver.run(pending) == [driver.keys.job("b")]


def test_a_childs_failure_is_listed_as_its_option_says(driver: QueueDriver) -> None:
    driver.add("p", waits_for_children=True)
    for child, flag in (("a", "idof"), ("b", "fpof")):
        parent = {"id": "p", "queueKey": driver.keys.qualified, flag: True}
        driver.add(child, parent=parent, parent_key=driver.keys.job("p"))
    driver.exchange(*(driver.finished(child, failed=True) for child in driver.take(2)))
    ignored, counted = read.get_failed_children(driver.keys, "p")
    assert driver.run(ignored) == {driver.keys.job("a"): "why"}
    assert driver.run(counted) == [driver.keys.job("b")]


def test_meta_is_written_once_unless_a_length_is_asked_for(driver: QueueDriver) -> None:
    for version in ("one", "two"):
        for command in manage.set_meta(driver.keys, version=version):
            driver.run(command)
    assert driver.run(read.get_meta(driver.keys)) == {"version": "one", "opts.maxLenEvents": "10000"}
    for command in manage.set_meta(driver.keys, version="three", events_max_len=50):
        driver.run(command)
    assert driver.run(read.get_meta(driver.keys)) == {"version": "one", "opts.maxLenEvents": "50"}


def test_limits_of_the_whole_queue_can_be_set_and_lifted(driver: QueueDriver) -> None:
    driver.run(manage.set_global_concurrency(driver.keys, 1))
    driver.run(manage.set_global_rate_limit(driver.keys, (5, 1000)))
    driver.add("a", "b")
    assert driver.take(2) == ["a"]
    assert driver.run(read.is_maxed(driver.keys)) is True
    driver.run(manage.set_global_concurrency(driver.keys, None))
    driver.run(manage.set_global_rate_limit(driver.keys, None))
    assert driver.run(read.is_maxed(driver.keys)) is False
    assert driver.take(2) == ["b"]


def test_the_rate_can_be_held(driver: QueueDriver) -> None:
    assert driver.run(read.get_rate_limit_ttl(driver.keys)) == -2
    driver.run(manage.start_rate_limit(driver.keys, 60_000))
    assert 0 < driver.run(read.get_rate_limit_ttl(driver.keys)) <= 60_000
    assert 0 < driver.run(read.get_rate_limit_ttl(driver.keys, 5)) <= 60_000


def test_events_can_be_trimmed(driver: QueueDriver) -> None:
    driver.add(*(f"j{n}" for n in range(200)))
    assert driver.run(manage.trim_events(driver.keys, 10)) > 0


@pytest.mark.parametrize("state", ["wait", "paused", "active"])
def test_a_clean_of_a_list_touches_only_its_end(
    driver: QueueDriver, raw_command: Callable[..., Any], state: cleaning.CleanState
) -> None:
    """The oldest are looked at, those that stay keep their order, and the rest of the list is not searched."""
    driver.add(*(f"j{n}" for n in range(10)))
    if state == "paused":
        driver.run(manage.pause(driver.keys))
    if state == "active":
        raw_command("DEL", *(driver.keys.lock(one) for one in driver.take(10)))
    key = driver.keys.base + state
    *others, old, young, older, oldest = (one.decode() for one in raw_command("LRANGE", key, 0, -1))
    raw_command("HSET", driver.keys.job(young), "timestamp", NOW + 60_000, "processedOn", NOW + 60_000)
    removed = driver.run(cleaning.clean(driver.keys, state, before_ms=NOW + 10, limit=4)).removed
    assert sorted(removed) == sorted([old, older, oldest])
    assert [one.decode() for one in raw_command("LRANGE", key, 0, -1)] == [*others, young]
    assert raw_command("KEYS", driver.keys.toril("clean:*")) == []


def test_a_full_server_can_be_cleaned(start_valkey: Callable[..., Server], prefix: str) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    with BlockingTransport(server.url) as transport, server.client() as client:
        driver = QueueDriver(transport, QueueKeys("paint", prefix, hash_tag=False))
        driver.add("a", "b")
        client.config_set("maxmemory", 1)
        removed = driver.run(cleaning.clean(driver.keys, "wait", before_ms=NOW + 10, limit=10)).removed
        assert sorted(removed) == ["a", "b"]
