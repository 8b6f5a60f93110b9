"""Changing jobs and queues: what each command does, and which refusal it raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.commands.conftest import NOW, Hand
from toril.commands import manage, read, streams
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


def state(hand: Hand, job_id: str = "a") -> str:
    return hand.run(read.get_state(hand.keys, job_id))


def fields(hand: Hand, *names: str) -> list[bytes | None]:
    return hand.run(read.get_fields(hand.keys, "a", names))


MISSING = {
    "update data": lambda keys: manage.update_data(keys, "nobody", b"{}"),
    "update progress": lambda keys: manage.update_progress(keys, "nobody", b"1"),
    "log": lambda keys: manage.add_log(keys, "nobody", "line", keep=10),
    "change delay": lambda keys: manage.change_delay(keys, "nobody", delay_ms=1, now_ms=NOW),
    "change priority": lambda keys: manage.change_priority(keys, "nobody", priority=1),
    "reprocess": lambda keys: manage.reprocess(keys, "nobody"),
    "detach": lambda keys: manage.remove_child_dependency(keys, "nobody", "also-nobody"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_job_that_does_not_exist_is_refused_by_name(hand: Hand, what: str) -> None:
    command = MISSING[what](hand.keys)
    with pytest.raises(JobNotFound) as refused:
        hand.run(command)
    assert (refused.value.job_id, refused.value.code) == ("nobody", -1)
    assert refused.value.command == command.name


class TestAChangeWhoseReplyWasLost:
    """It is sent again: what others did meanwhile stays, and nothing is announced twice."""

    def test_does_not_remove_a_job_that_was_added_meanwhile(self, hand: Hand) -> None:
        hand.add("a")
        removal = manage.remove(hand.keys, "a")
        hand.run(removal)
        hand.add("a")
        hand.run(removal)
        assert state(hand) == "waiting"

    def test_does_not_overwrite_newer_data(self, hand: Hand) -> None:
        hand.add("a")
        change = manage.update_data(hand.keys, "a", b'{"n":1}')
        hand.run(change)
        hand.run(manage.update_data(hand.keys, "a", b'{"n":2}'))
        hand.run(change)
        assert fields(hand, "data") == [b'{"n":2}']

    def test_announces_progress_once(self, hand: Hand) -> None:
        hand.add("a")
        change = manage.update_progress(hand.keys, "a", b"5")
        hand.run(change)
        hand.run(change)
        entries = hand.run(streams.entries(hand.keys.events, "0", "+", 100))
        assert sum(b"progress" in said for _, said in entries) == 1


def test_data_and_progress_are_replaced(hand: Hand) -> None:
    hand.add("a")
    assert hand.run(manage.update_data(hand.keys, "a", b'{"n":2}')) is None
    assert hand.run(manage.update_progress(hand.keys, "a", b"50")) is None
    assert fields(hand, "data", "progress") == [b'{"n":2}', b"50"]


def test_logs_are_counted_and_trimmed(hand: Hand) -> None:
    hand.add("a")
    lengths = [hand.run(manage.add_log(hand.keys, "a", f"line {n}", keep=2)) for n in range(3)]
    assert lengths == [1, 2, 2]
    assert hand.run(manage.add_log(hand.keys, "a", "all", keep=None)) == 3
    lines, count = (hand.run(command) for command in read.get_logs(hand.keys, "a"))
    assert (lines, count) == (["line 1", "line 2", "all"], 3)


def test_a_log_that_keeps_no_lines_keeps_none_of_others_either(hand: Hand) -> None:
    hand.add("a")
    assert hand.run(manage.add_log(hand.keys, "a", "of Node", keep=None)) == 1
    assert hand.run(manage.add_log(hand.keys, "a", "line", keep=0)) == 0
    assert [hand.run(command) for command in read.get_logs(hand.keys, "a")] == [[], 0]
    with pytest.raises(JobNotFound):
        hand.run(manage.add_log(hand.keys, "nobody", "line", keep=0))


def test_a_delay_can_be_changed_while_it_lasts(hand: Hand) -> None:
    hand.add("a", delay=60_000)
    hand.run(manage.change_delay(hand.keys, "a", delay_ms=5_000, now_ms=NOW))
    assert fields(hand, "delay") == [b"5000"]
    hand.run(manage.promote(hand.keys, "a"))
    assert state(hand) == "waiting"
    for command in (
        manage.change_delay(hand.keys, "a", delay_ms=1, now_ms=NOW),
        manage.promote(hand.keys, "a"),
    ):
        with pytest.raises(JobNotInState):
            hand.run(command)


def test_a_priority_moves_a_job_between_the_lists(hand: Hand) -> None:
    hand.add("a", "b")
    hand.run(manage.change_priority(hand.keys, "a", priority=5))
    assert state(hand) == "prioritized"
    hand.run(manage.change_priority(hand.keys, "a", priority=0, lifo=True))
    assert state(hand) == "waiting"
    assert hand.take() == ["a"]


@pytest.mark.parametrize("failed", [True, False])
def test_a_finished_job_can_run_again(hand: Hand, failed: bool) -> None:
    hand.add("a")
    hand.take()
    hand.finish("a", failed=failed)
    where, other = ("failed", "completed") if failed else ("completed", "failed")
    with pytest.raises(JobNotInState):
        hand.run(manage.reprocess(hand.keys, "a", state=other))
    hand.run(manage.reprocess(hand.keys, "a", state=where))
    assert state(hand) == "waiting"
    assert fields(hand, "finishedOn", "failedReason", "returnvalue") == [None, None, None]


def test_many_failed_jobs_are_retried_in_bounded_calls(hand: Hand) -> None:
    ids = [f"j{n}" for n in range(5)]
    hand.add(*ids)
    hand.exchange(*(hand.finished(one, failed=True) for one in hand.take(5)))
    assert hand.run(manage.move_jobs_to_wait(hand.keys, "failed", count=3, until_ms=NOW)) == (3, True)
    assert hand.run(manage.move_jobs_to_wait(hand.keys, "failed", count=3, until_ms=NOW - 1)) == (0, False)
    assert hand.run(manage.move_jobs_to_wait(hand.keys, "failed", count=3, until_ms=NOW)) == (2, False)
    assert hand.run(read.get_counts(hand.keys))["wait"] == 5


def test_all_delayed_jobs_can_be_promoted(hand: Hand) -> None:
    hand.add("a", "b", delay=3_600_000)
    assert hand.run(manage.move_jobs_to_wait(hand.keys, "delayed", count=10)) == (2, False)
    assert hand.run(read.get_counts(hand.keys))["wait"] == 2


def test_a_job_is_removed_unless_somebody_works_on_it(hand: Hand) -> None:
    hand.add("a", "b")
    assert hand.run(manage.remove(hand.keys, "a")) is None
    assert state(hand) == "unknown"
    assert hand.run(manage.remove(hand.keys, "a")) is None  # Removing it again changes nothing.
    hand.take()
    with pytest.raises(JobLocked) as refused:
        hand.run(manage.remove(hand.keys, "b"))
    assert refused.value.job_id == "b"


def test_the_next_run_of_a_scheduler_cannot_be_removed_alone(hand: Hand, spoil: Callable) -> None:
    spoil("ZADD", hand.keys.repeat, 1, "tick")
    spoil("HSET", hand.keys.job("a"), "name", "tick", "rjk", "tick")
    spoil("HSET", f"{hand.keys.repeat}:tick", "ic", 1)
    spoil("HSET", hand.keys.job("repeat:tick:1"), "name", "tick", "rjk", "tick")
    with pytest.raises(JobBelongsToScheduler):
        hand.run(manage.remove(hand.keys, "repeat:tick:1"))


def test_a_paused_queue_gives_no_jobs_until_it_is_resumed(hand: Hand) -> None:
    hand.add("a")
    hand.run(manage.pause(hand.keys))
    assert hand.run(read.is_paused(hand.keys)) is True
    assert hand.take() == []
    assert hand.run(read.get_counts(hand.keys))["paused"] == 1
    hand.run(manage.resume(hand.keys))
    assert hand.run(read.is_paused(hand.keys)) is False
    assert hand.take() == ["a"]


@pytest.mark.parametrize(
    "kind", ["completed", "failed", "wait", "active", "delayed", "prioritized", "paused"]
)
def test_clean_removes_what_is_old_enough(hand: Hand, spoil: Callable, kind: str) -> None:
    options = {"delayed": {"delay": 5}, "prioritized": {"priority": 1}}.get(kind, {})
    hand.add("a", "b", **options)
    if kind in ("completed", "failed", "active"):
        hand.take(2)
    if kind in ("completed", "failed"):
        hand.exchange(*(hand.finished(one, failed=kind == "failed") for one in "ab"))
    if kind == "active":
        spoil("DEL", hand.keys.lock("a"), hand.keys.lock("b"))
    if kind == "paused":
        hand.run(manage.pause(hand.keys))
    assert hand.run(manage.clean(hand.keys, kind, before_ms=NOW - 1, limit=10)) == []
    removed = hand.run(manage.clean(hand.keys, kind, before_ms=NOW + 10, limit=10))
    assert sorted(removed) == ["a", "b"]
    assert state(hand) == "unknown"


class TestObliterating:
    def test_needs_a_paused_queue(self, hand: Hand) -> None:
        hand.add("a")
        with pytest.raises(QueueNotPaused):
            hand.run(manage.obliterate(hand.keys, count=10))

    def test_refuses_while_jobs_are_worked_on(self, hand: Hand) -> None:
        hand.add("a")
        hand.take()
        hand.run(manage.pause(hand.keys))
        with pytest.raises(QueueHasActiveJobs):
            hand.run(manage.obliterate(hand.keys, count=10))
        assert hand.run(manage.obliterate(hand.keys, count=10, force=True)) is False
        assert state(hand) == "unknown"

    def test_goes_on_in_bounded_calls(self, hand: Hand) -> None:
        hand.add(*(f"j{n}" for n in range(20)))
        hand.run(manage.pause(hand.keys))
        calls = 1
        while hand.run(manage.obliterate(hand.keys, count=5)):
            calls += 1
        assert calls > 2
        assert sum(hand.run(read.get_counts(hand.keys)).values()) == 0

    def test_names_a_code_nobody_knows(self) -> None:
        assert isinstance(obliterate_refusal(-77), ScriptRefused)
        assert "-77" in str(obliterate_refusal(-77))


def test_a_deduplication_key_can_be_removed_once(hand: Hand) -> None:
    hand.add("a", de={"id": "same"})
    assert hand.run(read.get_deduplication_job_id(hand.keys, "same")) == "a"
    assert hand.run(manage.remove_deduplication_key(hand.keys, "same")) is True
    assert hand.run(manage.remove_deduplication_key(hand.keys, "same")) is False
    assert hand.run(read.get_deduplication_job_id(hand.keys, "same")) is None


class TestAChild:
    @pytest.fixture(autouse=True)
    def family(self, hand: Hand) -> None:
        hand.add("p", waits_for_children=True)
        parent = {"id": "p", "queueKey": hand.keys.qualified}
        hand.add("a", "b", parent=parent, parent_key=hand.keys.job("p"))

    def test_can_be_detached_once(self, hand: Hand) -> None:
        assert hand.run(manage.remove_child_dependency(hand.keys, "a", hand.keys.job("p"))) is True
        assert hand.run(manage.remove_child_dependency(hand.keys, "a", hand.keys.job("p"))) is False

    def test_cannot_be_detached_from_nobody(self, hand: Hand) -> None:
        with pytest.raises(ParentNotFound):
            hand.run(manage.remove_child_dependency(hand.keys, "a", hand.keys.job("nobody")))

    def test_is_removed_with_all_that_wait(self, hand: Hand) -> None:
        hand.run(manage.remove_unprocessed_children(hand.keys, "p"))
        assert (state(hand, "a"), state(hand, "b")) == ("unknown", "unknown")

    def test_is_listed_until_it_is_done(self, hand: Hand) -> None:
        processed, pending = read.get_children(hand.keys, "p")
        assert hand.run(pending) == [hand.keys.job("a"), hand.keys.job("b")]
        hand.take()
        hand.finish("a")
        assert hand.run(processed) == {hand.keys.job("a"): '"done"'}
        assert hand.run(pending) == [hand.keys.job("b")]


def test_a_childs_failure_is_listed_as_its_option_says(hand: Hand) -> None:
    hand.add("p", waits_for_children=True)
    for child, flag in (("a", "idof"), ("b", "fpof")):
        parent = {"id": "p", "queueKey": hand.keys.qualified, flag: True}
        hand.add(child, parent=parent, parent_key=hand.keys.job("p"))
    hand.exchange(*(hand.finished(child, failed=True) for child in hand.take(2)))
    ignored, counted = (hand.run(command) for command in read.get_failed_children(hand.keys, "p"))
    assert ignored == {hand.keys.job("a"): "why"}
    assert counted == [hand.keys.job("b")]


def test_meta_is_written_once_unless_a_length_is_asked_for(hand: Hand) -> None:
    for version in ("one", "two"):
        for command in manage.set_meta(hand.keys, version=version):
            hand.run(command)
    assert hand.run(read.get_meta(hand.keys)) == {"version": "one", "opts.maxLenEvents": "10000"}
    for command in manage.set_meta(hand.keys, version="three", events_max_len=50):
        hand.run(command)
    assert hand.run(read.get_meta(hand.keys)) == {"version": "one", "opts.maxLenEvents": "50"}


def test_limits_of_the_whole_queue_can_be_set_and_lifted(hand: Hand) -> None:
    hand.run(manage.set_global_concurrency(hand.keys, 1))
    hand.run(manage.set_global_rate_limit(hand.keys, (5, 1000)))
    hand.add("a", "b")
    assert hand.take(2) == ["a"]
    assert hand.run(read.is_maxed(hand.keys)) is True
    hand.run(manage.set_global_concurrency(hand.keys, None))
    hand.run(manage.set_global_rate_limit(hand.keys, None))
    assert hand.run(read.is_maxed(hand.keys)) is False
    assert hand.take(2) == ["b"]


def test_the_rate_can_be_held(hand: Hand) -> None:
    assert hand.run(read.get_rate_limit_ttl(hand.keys)) == -2
    hand.run(manage.hold_rate(hand.keys, 60_000))
    assert 0 < hand.run(read.get_rate_limit_ttl(hand.keys)) <= 60_000
    assert 0 < hand.run(read.get_rate_limit_ttl(hand.keys, 5)) <= 60_000


def test_events_can_be_trimmed(hand: Hand) -> None:
    hand.add(*(f"j{n}" for n in range(200)))
    assert hand.run(manage.trim_events(hand.keys, 10)) > 0


@pytest.mark.parametrize("state", ["wait", "paused", "active"])
def test_a_clean_of_a_list_touches_only_its_end(hand: Hand, spoil: Callable, state: str) -> None:
    """The oldest are looked at, those that stay keep their order, and the rest of the list is not searched."""
    hand.add(*(f"j{n}" for n in range(10)))
    if state == "paused":
        hand.run(manage.pause(hand.keys))
    if state == "active":
        spoil("DEL", *(hand.keys.lock(one) for one in hand.take(10)))
    key = hand.keys.base + state
    *others, old, young, older, oldest = (one.decode() for one in spoil("LRANGE", key, 0, -1))
    spoil("HSET", hand.keys.job(young), "timestamp", NOW + 60_000, "processedOn", NOW + 60_000)
    removed = hand.run(manage.clean(hand.keys, state, before_ms=NOW + 10, limit=4))
    assert sorted(removed) == sorted([old, older, oldest])
    assert [one.decode() for one in spoil("LRANGE", key, 0, -1)] == [*others, young]
    assert spoil("KEYS", hand.keys.toril("clean:*")) == []


def test_a_full_server_can_be_cleaned(start_valkey: Callable, prefix: str) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    with BlockingTransport(server.url) as transport, server.client() as client:
        hand = Hand(transport, QueueKeys("paint", prefix, hash_tag=False))
        hand.add("a", "b")
        client.config_set("maxmemory", 1)
        assert sorted(hand.run(manage.clean(hand.keys, "wait", before_ms=NOW + 10, limit=10))) == ["a", "b"]
