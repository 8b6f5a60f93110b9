"""Settling and taking: what a call brings back, who is refused, and what a poisoned job may not do to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import manage, read, worker
from toril.commands.add import JobToAdd, add_jobs
from toril.commands.command import Replay
from toril.commands.worker import Pickup, Settlement, SettlementKind
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


def lock(raw_command: Callable[..., Any], driver: QueueDriver, job_id: str) -> bytes | None:
    token: bytes | None = raw_command("GET", driver.keys.lock(job_id))
    return token


def state(driver: QueueDriver, job_id: str) -> str:
    return driver.run(read.get_state(driver.keys, job_id))


def test_jobs_are_taken_in_the_order_they_were_added(driver: QueueDriver) -> None:
    driver.add("a", "b", "c")
    fetch_reply = driver.exchange(take=2)
    assert [job_id for job_id, _ in fetch_reply.jobs] == ["a", "b"]
    fields = dict(zip(fetch_reply.jobs[0][1][::2], fetch_reply.jobs[0][1][1::2], strict=True))
    assert fields[b"name"] == b"draw"
    assert (fields[b"ats"], fields[b"pb"]) == (b"1", b"w1")


def test_an_empty_queue_gives_nothing_and_says_when_to_ask_again(driver: QueueDriver) -> None:
    assert driver.exchange(take=3) == worker.FetchReply([], [], 0, 0, "")
    driver.add("later", delay=60_000)
    assert driver.exchange(take=3).next_at_ms == NOW + 60_000


def test_a_closed_rate_limit_is_returned(driver: QueueDriver) -> None:
    driver.add("a")
    driver.run(manage.set_global_rate_limit(driver.keys, (1, 60_000)))
    driver.run(manage.start_rate_limit(driver.keys, 60_000))
    assert 0 < driver.exchange(take=1).limited_ms <= 60_000
    driver.run(manage.set_global_rate_limit(driver.keys, None))


def test_without_capacity_no_job_is_taken(driver: QueueDriver) -> None:
    driver.add("a", "b")
    assert driver.exchange(take=0).jobs == []
    assert driver.take(1) == ["a"]
    assert driver.run(read.get_counts(driver.keys))["wait"] == 1


def test_every_job_of_a_call_is_locked_under_the_calls_own_token(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    driver.add("a", "b", "c", "d")
    assert driver.take(2, token="old") == ["a", "b"]
    done = [driver.finished(job_id, token="old") for job_id in "ab"]
    fetch_reply = driver.exchange(*done, take=2, token="new")
    assert fetch_reply.ack_errors == [None, None]
    assert [job_id for job_id, _ in fetch_reply.jobs] == ["c", "d"]
    assert {lock(raw_command, driver, job_id) for job_id in "cd"} == {b"new"}
    assert 0 < raw_command("PTTL", driver.keys.lock("c")) <= 30_000


def test_each_settlement_has_a_verdict_of_its_own(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    driver.add("good", "stolen", "expired", "gone", "idle")
    assert len(driver.take(4)) == 4
    raw_command("SET", driver.keys.lock("stolen"), "another")
    raw_command("DEL", driver.keys.lock("expired"))
    raw_command("DEL", driver.keys.job("gone"))
    raw_command("SET", driver.keys.lock("idle"), "t1")
    ids = ("good", "stolen", "expired", "gone", "idle")
    ack_errors = driver.exchange(*(driver.finished(job_id) for job_id in ids)).ack_errors
    assert [type(one) for one in ack_errors] == [
        type(None),
        LockLost,
        LockMissing,
        JobNotFound,
        JobNotInState,
    ]
    lost = ack_errors[1]
    assert isinstance(lost, LockLost)
    assert (lost.job_id, lost.command) == ("stolen", "moveToFinished")
    assert state(driver, "good") == "completed"


@pytest.mark.parametrize(
    ("kind", "value", "options", "expected"),
    [
        ("delayed", 60_000, "0", "delayed"),
        ("delayed", 60_000, "1", "delayed"),
        ("retry", "LPUSH", "", "waiting"),
        ("wait", "", "", "waiting"),
    ],
)
def test_a_job_goes_where_its_outcome_says(
    driver: QueueDriver, kind: SettlementKind, value: str | int, options: str, expected: str
) -> None:
    driver.add("a")
    driver.take()
    outcome = Settlement(job_id="a", kind=kind, token="t1", value=value, options=options)
    assert driver.exchange(outcome).ack_errors == [None]
    assert state(driver, "a") == expected
    counted = driver.run(read.get_fields(driver.keys, "a", ["atm"]))
    assert counted == ([None] if kind == "wait" or options == "1" else [b"1"])


@pytest.mark.parametrize("kind", ["delayed", "retry", "wait"])
def test_another_token_may_move_no_job(driver: QueueDriver, kind: SettlementKind) -> None:
    driver.add("a")
    driver.take()
    outcome = Settlement(job_id="a", kind=kind, token="another", value="1" if kind == "delayed" else "LPUSH")
    assert isinstance(driver.exchange(outcome).ack_errors[0], LockLost)
    assert state(driver, "a") == "active"


def test_giving_back_under_a_closed_rate_limit_is_accepted(driver: QueueDriver) -> None:
    driver.add("a")
    driver.take()
    driver.run(manage.start_rate_limit(driver.keys, 60_000))
    assert driver.exchange(Settlement(job_id="a", kind="wait", token="t1")).ack_errors == [None]


def test_a_failure_keeps_its_reason_and_trace(driver: QueueDriver) -> None:
    driver.add("a")
    driver.take()
    fields = worker.packed_fields({"stacktrace": '["line 1"]'})
    failed = driver.finished("a", failed=True)
    driver.exchange(failed._replace(fields=fields))
    assert driver.run(read.get_fields(driver.keys, "a", ["failedReason", "stacktrace"])) == [
        b"why",
        b'["line 1"]',
    ]
    assert worker.packed_fields({}) == b""


def test_a_parent_with_children_cannot_be_completed(driver: QueueDriver) -> None:
    driver.add("p")
    driver.take()
    parent = {"id": "p", "queueKey": driver.keys.qualified, "fpof": True}
    driver.add("c", parent=parent, parent_key=driver.keys.job("p"))
    assert isinstance(driver.finish("p").ack_errors[0], PendingChildren)
    driver.take()
    driver.finish("c", failed=True)
    assert isinstance(driver.finish("p").ack_errors[0], FailedChildren)


class TestWaitingForChildren:
    def park(self, driver: QueueDriver, **more: Any) -> bool:
        return driver.run(worker.move_to_waiting_children(driver.keys, "p", token="t1", now_ms=NOW, **more))

    def test_parks_a_parent_that_has_some(self, driver: QueueDriver) -> None:
        driver.add("p")
        driver.take()
        driver.add(
            "c", parent={"id": "p", "queueKey": driver.keys.qualified}, parent_key=driver.keys.job("p")
        )
        assert self.park(driver, child_key="nobody") is False
        assert self.park(driver, child_key=driver.keys.job("c")) is True
        assert state(driver, "p") == "waiting-children"

    def test_says_no_when_there_is_none(self, driver: QueueDriver) -> None:
        driver.add("p")
        driver.take()
        assert self.park(driver) is False

    def test_is_refused_under_another_token(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        with pytest.raises(JobNotFound):
            self.park(driver)
        driver.add("p")
        driver.take(token="another")
        driver.add(
            "c", parent={"id": "p", "queueKey": driver.keys.qualified}, parent_key=driver.keys.job("p")
        )
        with pytest.raises(LockLost):
            self.park(driver)


class TestAPoisonedJob:
    """Upstream's scripts leave it half moved, or return it again and again; ours moves it to failed and goes on."""

    @pytest.fixture(params=["plain", "limited"])
    def driver(self, driver: QueueDriver, request: pytest.FixtureRequest) -> QueueDriver:
        """A queue with a limit goes the official way, one without the short way."""
        if request.param == "limited":
            driver.run(manage.set_global_concurrency(driver.keys, 100))
        return driver

    def make_no_hash(self, raw_command: Callable[..., Any], driver: QueueDriver, job_id: str) -> None:
        raw_command("DEL", driver.keys.job(job_id))
        raw_command("SET", driver.keys.job(job_id), "no hash")

    def test_fails_alone_when_it_is_settled(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("bad", "good")
        driver.take(2)
        raw_command("HSET", driver.keys.job("bad"), "parent", "{not json")
        bad, good = driver.exchange(driver.finished("bad"), driver.finished("good")).ack_errors
        assert isinstance(bad, ScriptFailed)
        assert good is None
        assert (state(driver, "bad"), state(driver, "good")) == ("failed", "completed")
        assert raw_command("LLEN", driver.keys.active) == 0

    @pytest.mark.parametrize("others", ["before", "behind", "around"])
    def test_does_not_hide_the_jobs_beside_it(
        self, driver: QueueDriver, raw_command: Callable[..., Any], others: str
    ) -> None:
        ids = {"before": ["a", "bad"], "behind": ["bad", "b"], "around": ["a", "bad", "b"]}[others]
        driver.add(*ids)
        self.make_no_hash(raw_command, driver, "bad")
        fetch_reply = driver.exchange(take=5)
        assert [job_id for job_id, _ in fetch_reply.jobs] == [one for one in ids if one != "bad"]
        assert raw_command("LPOS", driver.keys.active, "bad") is None

    def test_does_not_hide_the_verdicts_of_the_call(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("good")
        driver.take()
        raw_command("LPUSH", driver.keys.wait, "bad")
        raw_command("SET", driver.keys.job("bad"), "no hash")
        fetch_reply = driver.exchange(driver.finished("good"), take=5)
        assert fetch_reply.ack_errors == [None]
        assert state(driver, "good") == "completed"

    def test_alone_leaves_an_empty_queue_and_a_word_about_it(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("bad")
        self.make_no_hash(raw_command, driver, "bad")
        assert driver.exchange(take=1).jobs == []
        assert (raw_command("LLEN", driver.keys.wait), raw_command("LLEN", driver.keys.active)) == (0, 0)
        _, told = driver.run(read.last_events(driver.keys, 1))[0]
        assert (told["event"], told["jobId"]) == ("failed", "bad")
        assert "WRONGTYPE" in told["failedReason"]

    def test_of_an_unknown_kind_is_refused(self, driver: QueueDriver) -> None:
        unknown = Settlement(job_id="a", kind="vanished", token="t1")  # type: ignore[arg-type]
        (ack_error,) = driver.exchange(unknown).ack_errors
        assert isinstance(ack_error, ScriptFailed)
        assert "unknown settlement vanished" in str(ack_error)


def test_a_full_server_takes_finishes_and_refuses_pickups(
    start_valkey: Callable[..., Server], keys: QueueKeys
) -> None:
    server = start_valkey()
    with server.client() as client, BlockingTransport(server.url) as transport:
        driver = QueueDriver(transport, keys)
        driver.add("a", "b")
        driver.take()
        client.config_set("maxmemory", "1")
        with pytest.raises(RedisOutOfMemory):
            driver.exchange(take=1)
        assert driver.finish("a").ack_errors == [None]
        client.config_set("maxmemory", "0")
        assert driver.take() == ["b"]


def test_one_job_can_be_taken_as_upstream_takes_it(driver: QueueDriver) -> None:
    driver.add("a")
    pickup = Pickup(token="t1", lock_ms=30_000)
    fetch_reply = driver.run(worker.fetch_one(driver.keys, pickup=pickup, now_ms=NOW))
    assert fetch_reply.jobs[0][0] == "a"
    assert driver.run(worker.fetch_one(driver.keys, pickup=pickup, now_ms=NOW)).jobs == []


def test_a_marker_says_that_work_is_ready_or_when_it_will_be(driver: QueueDriver) -> None:
    wait = worker.wait_for_marker(driver.keys, 1)
    driver.add("later", delay=60_000)
    assert driver.run(wait) == NOW + 60_000
    driver.run(worker.set_marker(driver.keys))
    assert driver.run(wait) == 0
    assert driver.transport.run_blocking(worker.wait_for_marker(driver.keys, 0.01), 0.01) is None
    assert wait.replay is Replay.SAFE


def test_settling_is_never_repeated_blindly(keys: QueueKeys) -> None:
    assert (
        worker.settle(keys, [], capacity=1, pickup=Pickup(token="t", lock_ms=1), now_ms=1).replay
        is Replay.NEVER
    )


def test_a_batch_of_adds_and_pickups_may_be_large(driver: QueueDriver) -> None:
    jobs = [JobToAdd(name="n", data=b"{}", options={}, timestamp=NOW, id=f"j{n}") for n in range(1500)]
    assert len(driver.run(add_jobs(driver.keys, jobs))) == 1500
    taken = driver.take(1500)
    assert taken == [f"j{n}" for n in range(1500)]
    fetch_reply = driver.exchange(*(driver.finished(job_id) for job_id in taken))
    assert fetch_reply.ack_errors == [None] * 1500


@pytest.mark.parametrize(
    ("rules", "hash_tag", "command"),
    # Keys with hash tags may be on a cluster: while it migrates a slot, MSETEX loses keys.
    [("+@all", False, "msetex"), ("+@all -msetex", False, "set"), ("+@all", True, "set")],
)
def test_the_locks_of_a_batch_are_one_write_if_the_server_has_a_command_and_the_user_may_call_it(
    start_valkey: Callable[..., Server], prefix: str, rules: str, hash_tag: bool, command: str
) -> None:
    keys, server = QueueKeys("paint", prefix, hash_tag=hash_tag), start_valkey()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "some", "on", ">pw", "~*", "resetchannels", *rules.split())
        with BlockingTransport(f"redis://some:pw@127.0.0.1:{server.port}") as transport:
            driver = QueueDriver(transport, keys)
            driver.add("a", "b", "c")
            client.config_resetstat()
            assert driver.take(3, token="mine") == ["a", "b", "c"]
        called = {name for name in ("msetex", "set") if f"cmdstat_{name}" in client.info("commandstats")}
        assert called == {command}
        assert [client.get(keys.lock(job_id)) for job_id in "abc"] == [b"mine"] * 3
        assert all(0 < client.pttl(keys.lock(job_id)) <= 30_000 for job_id in "abc")
        assert client.execute_command("ACL", "LOG") == []
