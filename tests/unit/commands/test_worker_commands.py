"""Settling and taking: what a call brings back, who is refused, and what a poisoned job may not do to others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import Server
from tests.unit.commands.conftest import NOW, Hand
from toril.commands import manage, read, worker
from toril.commands.add import JobToAdd, add_jobs
from toril.commands.command import Replay
from toril.commands.worker import Pickup, Settlement
from toril.errors import (
    FailedChildren,
    JobNotFound,
    JobNotInState,
    LockLost,
    LockMissing,
    PendingChildren,
    RedisOutOfMemory,
    ScriptFailed,
)
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport


def lock(spoil: Callable, hand: Hand, job_id: str) -> bytes | None:
    return spoil("GET", hand.keys.lock(job_id))


def state(hand: Hand, job_id: str) -> str:
    return hand.run(read.get_state(hand.keys, job_id))


def test_jobs_are_taken_in_the_order_they_were_added(hand: Hand) -> None:
    hand.add("a", "b", "c")
    harvest = hand.exchange(take=2)
    assert [job_id for job_id, _ in harvest.jobs] == ["a", "b"]
    fields = dict(zip(harvest.jobs[0][1][::2], harvest.jobs[0][1][1::2], strict=True))
    assert fields[b"name"] == b"draw"
    assert (fields[b"ats"], fields[b"pb"]) == (b"1", b"w1")


def test_an_empty_queue_gives_nothing_and_says_when_to_ask_again(hand: Hand) -> None:
    assert hand.exchange(take=3) == worker.FetchReply([], [], 0, 0, "")
    hand.add("later", delay=60_000)
    assert hand.exchange(take=3).next_at_ms == NOW + 60_000


def test_a_closed_rate_limit_is_told(hand: Hand) -> None:
    hand.add("a")
    hand.run(manage.set_global_rate_limit(hand.keys, (1, 60_000)))
    hand.run(manage.hold_rate(hand.keys, 60_000))
    assert 0 < hand.exchange(take=1).limited_ms <= 60_000
    hand.run(manage.set_global_rate_limit(hand.keys, None))


def test_a_full_hand_takes_no_more(hand: Hand) -> None:
    hand.add("a", "b")
    assert hand.exchange(take=0).jobs == []
    assert hand.take(1) == ["a"]
    assert hand.run(read.get_counts(hand.keys))["wait"] == 1


def test_every_job_of_a_call_is_locked_under_the_calls_own_token(hand: Hand, spoil: Callable) -> None:
    hand.add("a", "b", "c", "d")
    assert hand.take(2, token="old") == ["a", "b"]
    done = [hand.finished(job_id, token="old") for job_id in "ab"]
    harvest = hand.exchange(*done, take=2, token="new")
    assert harvest.ack_errors == [None, None]
    assert [job_id for job_id, _ in harvest.jobs] == ["c", "d"]
    assert {lock(spoil, hand, job_id) for job_id in "cd"} == {b"new"}
    assert 0 < spoil("PTTL", hand.keys.lock("c")) <= 30_000


def test_each_settlement_has_a_verdict_of_its_own(hand: Hand, spoil: Callable) -> None:
    hand.add("good", "stolen", "expired", "gone", "idle")
    assert len(hand.take(4)) == 4
    spoil("SET", hand.keys.lock("stolen"), "another")
    spoil("DEL", hand.keys.lock("expired"))
    spoil("DEL", hand.keys.job("gone"))
    spoil("SET", hand.keys.lock("idle"), "t1")
    ids = ("good", "stolen", "expired", "gone", "idle")
    ack_errors = hand.exchange(*(hand.finished(job_id) for job_id in ids)).ack_errors
    assert [type(one) for one in ack_errors] == [
        type(None),
        LockLost,
        LockMissing,
        JobNotFound,
        JobNotInState,
    ]
    assert ack_errors[1].job_id == "stolen"
    assert ack_errors[1].command == "moveToFinished"
    assert state(hand, "good") == "completed"


@pytest.mark.parametrize(
    ("kind", "value", "options", "expected"),
    [
        ("delayed", 60_000, "0", "delayed"),
        ("delayed", 60_000, "1", "delayed"),
        ("retry", "LPUSH", "", "waiting"),
        ("wait", "", "", "waiting"),
    ],
)
def test_a_job_goes_where_its_outcome_says(hand: Hand, kind, value, options, expected) -> None:
    hand.add("a")
    hand.take()
    outcome = Settlement(job_id="a", kind=kind, token="t1", value=value, options=options)
    assert hand.exchange(outcome).ack_errors == [None]
    assert state(hand, "a") == expected
    counted = hand.run(read.get_fields(hand.keys, "a", ["atm"]))
    assert counted == ([None] if kind == "wait" or options == "1" else [b"1"])


@pytest.mark.parametrize("kind", ["delayed", "retry", "wait"])
def test_a_stranger_may_move_no_job(hand: Hand, kind) -> None:
    hand.add("a")
    hand.take()
    outcome = Settlement(job_id="a", kind=kind, token="another", value="1" if kind == "delayed" else "LPUSH")
    assert isinstance(hand.exchange(outcome).ack_errors[0], LockLost)
    assert state(hand, "a") == "active"


def test_giving_back_under_a_closed_rate_limit_is_accepted(hand: Hand) -> None:
    hand.add("a")
    hand.take()
    hand.run(manage.hold_rate(hand.keys, 60_000))
    assert hand.exchange(Settlement(job_id="a", kind="wait", token="t1")).ack_errors == [None]


def test_a_failure_keeps_its_reason_and_trace(hand: Hand) -> None:
    hand.add("a")
    hand.take()
    fields = worker.packed_fields({"stacktrace": '["line 1"]'})
    failed = hand.finished("a", failed=True)
    hand.exchange(failed._replace(fields=fields))
    assert hand.run(read.get_fields(hand.keys, "a", ["failedReason", "stacktrace"])) == [
        b"why",
        b'["line 1"]',
    ]
    assert worker.packed_fields({}) == b""


def test_a_parent_with_children_cannot_be_completed(hand: Hand) -> None:
    hand.add("p")
    hand.take()
    parent = {"id": "p", "queueKey": hand.keys.qualified, "fpof": True}
    hand.add("c", parent=parent, parent_key=hand.keys.job("p"))
    assert isinstance(hand.finish("p").ack_errors[0], PendingChildren)
    hand.take()
    hand.finish("c", failed=True)
    assert isinstance(hand.finish("p").ack_errors[0], FailedChildren)


class TestWaitingForChildren:
    def park(self, hand: Hand, **more):
        return hand.run(worker.move_to_waiting_children(hand.keys, "p", token="t1", now_ms=NOW, **more))

    def test_parks_a_parent_that_has_some(self, hand: Hand) -> None:
        hand.add("p")
        hand.take()
        hand.add("c", parent={"id": "p", "queueKey": hand.keys.qualified}, parent_key=hand.keys.job("p"))
        assert self.park(hand, child_key="nobody") is False
        assert self.park(hand, child_key=hand.keys.job("c")) is True
        assert state(hand, "p") == "waiting-children"

    def test_says_no_when_there_is_none(self, hand: Hand) -> None:
        hand.add("p")
        hand.take()
        assert self.park(hand) is False

    def test_is_refused_to_strangers(self, hand: Hand, spoil: Callable) -> None:
        with pytest.raises(JobNotFound):
            self.park(hand)
        hand.add("p")
        hand.take(token="another")
        hand.add("c", parent={"id": "p", "queueKey": hand.keys.qualified}, parent_key=hand.keys.job("p"))
        with pytest.raises(LockLost):
            self.park(hand)


class TestAPoisonedJob:
    """Upstream's scripts leave it half moved, or hand it out for ever; ours bury it and go on."""

    @pytest.fixture(params=["plain", "limited"])
    def hand(self, hand: Hand, request: pytest.FixtureRequest) -> Hand:
        """A queue with a limit goes the official way, one without the short way."""
        if request.param == "limited":
            hand.run(manage.set_global_concurrency(hand.keys, 100))
        return hand

    def make_no_hash(self, spoil: Callable, hand: Hand, job_id: str) -> None:
        spoil("DEL", hand.keys.job(job_id))
        spoil("SET", hand.keys.job(job_id), "no hash")

    def test_fails_alone_when_it_is_settled(self, hand: Hand, spoil: Callable) -> None:
        hand.add("bad", "good")
        hand.take(2)
        spoil("HSET", hand.keys.job("bad"), "parent", "{not json")
        bad, good = hand.exchange(hand.finished("bad"), hand.finished("good")).ack_errors
        assert isinstance(bad, ScriptFailed)
        assert good is None
        assert (state(hand, "bad"), state(hand, "good")) == ("failed", "completed")
        assert spoil("LLEN", hand.keys.active) == 0

    @pytest.mark.parametrize("others", ["before", "behind", "around"])
    def test_does_not_hide_the_jobs_beside_it(self, hand: Hand, spoil: Callable, others: str) -> None:
        ids = {"before": ["a", "bad"], "behind": ["bad", "b"], "around": ["a", "bad", "b"]}[others]
        hand.add(*ids)
        self.make_no_hash(spoil, hand, "bad")
        harvest = hand.exchange(take=5)
        assert [job_id for job_id, _ in harvest.jobs] == [one for one in ids if one != "bad"]
        assert spoil("LPOS", hand.keys.active, "bad") is None

    def test_does_not_hide_the_verdicts_of_the_call(self, hand: Hand, spoil: Callable) -> None:
        hand.add("good")
        hand.take()
        spoil("LPUSH", hand.keys.wait, "bad")
        spoil("SET", hand.keys.job("bad"), "no hash")
        harvest = hand.exchange(hand.finished("good"), take=5)
        assert harvest.ack_errors == [None]
        assert state(hand, "good") == "completed"

    def test_alone_leaves_an_empty_queue_and_a_word_about_it(self, hand: Hand, spoil: Callable) -> None:
        hand.add("bad")
        self.make_no_hash(spoil, hand, "bad")
        assert hand.exchange(take=1).jobs == []
        assert (spoil("LLEN", hand.keys.wait), spoil("LLEN", hand.keys.active)) == (0, 0)
        _, told = hand.run(read.last_events(hand.keys, 1))[0]
        assert (told["event"], told["jobId"]) == ("failed", "bad")
        assert "WRONGTYPE" in told["failedReason"]

    def test_of_an_unknown_kind_is_refused(self, hand: Hand) -> None:
        unknown = Settlement(job_id="a", kind="vanished", token="t1")  # type: ignore[arg-type]
        (ack_error,) = hand.exchange(unknown).ack_errors
        assert isinstance(ack_error, ScriptFailed)
        assert "unknown settlement vanished" in str(ack_error)


def test_a_full_server_takes_finishes_and_refuses_pickups(
    start_valkey: Callable[..., Server], keys: QueueKeys
) -> None:
    server = start_valkey()
    with server.client() as client, BlockingTransport(server.url) as transport:
        hand = Hand(transport, keys)
        hand.add("a", "b")
        hand.take()
        client.config_set("maxmemory", "1")
        with pytest.raises(RedisOutOfMemory):
            hand.exchange(take=1)
        assert hand.finish("a").ack_errors == [None]
        client.config_set("maxmemory", "0")
        assert hand.take() == ["b"]


def test_one_job_can_be_taken_as_upstream_takes_it(hand: Hand) -> None:
    hand.add("a")
    pickup = Pickup(token="t1", lock_ms=30_000)
    harvest = hand.run(worker.take_one(hand.keys, pickup=pickup, now_ms=NOW))
    assert harvest.jobs[0][0] == "a"
    assert hand.run(worker.take_one(hand.keys, pickup=pickup, now_ms=NOW)).jobs == []


def test_a_marker_says_that_work_is_ready_or_when_it_will_be(hand: Hand) -> None:
    wait = worker.wait_for_marker(hand.keys, 1)
    hand.add("later", delay=60_000)
    assert hand.run(wait) == NOW + 60_000
    hand.run(worker.set_marker(hand.keys))
    assert hand.run(wait) == 0
    assert hand.transport.run_blocking(worker.wait_for_marker(hand.keys, 0.01), 0.01) is None
    assert wait.replay is Replay.SAFE


def test_settling_is_never_repeated_blindly(keys: QueueKeys) -> None:
    assert (
        worker.settle(keys, [], take=1, pickup=Pickup(token="t", lock_ms=1), now_ms=1).replay is Replay.NEVER
    )


def test_a_batch_of_adds_and_pickups_may_be_large(hand: Hand) -> None:
    jobs = [JobToAdd(name="n", data=b"{}", options={}, timestamp=NOW, id=f"j{n}") for n in range(1500)]
    assert len(hand.run(add_jobs(hand.keys, jobs))) == 1500
    taken = hand.take(1500)
    assert taken == [f"j{n}" for n in range(1500)]
    harvest = hand.exchange(*(hand.finished(job_id) for job_id in taken))
    assert harvest.ack_errors == [None] * 1500
