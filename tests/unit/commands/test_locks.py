"""Heartbeats and the sweep: nobody's lock is taken, and every job of a dead worker comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import Server
from tests.unit.commands.conftest import NOW, Hand
from toril.commands import locks, read, worker
from toril.commands.locks import HeldLock, Sweep
from toril.errors import RedisOutOfMemory
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

INTERVAL = 30_000


def begin(hand: Hand) -> int:
    return hand.run(locks.sweep_begin(hand.keys, now_ms=NOW, interval_ms=INTERVAL))


def step(hand: Hand, suspects: int = 100, max_stalled: int = 1) -> tuple[list[str], int]:
    return hand.run(locks.sweep_step(hand.keys, max_stalled=max_stalled, suspects=suspects))


@pytest.fixture
def dead(hand: Hand, spoil: Callable) -> Callable[..., list[str]]:
    """Takes jobs whose worker then dies: suspected by one sweep, their locks gone, the next sweep may begin."""

    def die(*ids: str) -> list[str]:
        hand.add(*ids)
        assert hand.take(len(ids)) == list(ids)
        begin(hand)
        spoil("DEL", hand.keys.stalled_check, *(hand.keys.lock(job_id) for job_id in ids))
        return list(ids)

    return die


class TestHeartbeats:
    def test_renew_what_is_ours_and_name_what_is_not(self, hand: Hand, spoil: Callable) -> None:
        hand.add("ours", "stolen", "expired")
        hand.take(3)
        spoil("SET", hand.keys.lock("stolen"), "another", "PX", 1000)
        spoil("DEL", hand.keys.lock("expired"))
        spoil("SADD", hand.keys.stalled, "ours", "stolen", "expired")
        held = [(job_id, "t1") for job_id in ("ours", "stolen", "expired", "nobody")]
        lost = hand.run(locks.extend_locks(hand.keys, held, lock_ms=90_000))
        assert lost == ["stolen", "expired", "nobody"]
        assert spoil("PTTL", hand.keys.lock("ours")) > 60_000
        assert spoil("PTTL", hand.keys.lock("stolen")) <= 1000
        assert spoil("SMEMBERS", hand.keys.stalled) in ([b"stolen", b"expired"], {b"stolen", b"expired"})

    def test_of_nobody_are_no_trouble(self, hand: Hand) -> None:
        assert hand.run(locks.extend_locks(hand.keys, [], lock_ms=1000)) == []

    def test_go_on_when_the_server_is_full(
        self, start_valkey: Callable[..., Server], keys: QueueKeys
    ) -> None:
        server = start_valkey()
        with server.client() as client, BlockingTransport(server.url) as transport:
            hand = Hand(transport, keys)
            hand.add("a")
            hand.take()
            client.config_set("maxmemory", "1")
            assert hand.run(locks.extend_locks(keys, [("a", "t1")], lock_ms=90_000)) == []
            assert client.pttl(keys.lock("a")) > 60_000

    def test_can_be_sent_for_one_job(self, hand: Hand) -> None:
        hand.add("a")
        hand.take()
        assert hand.run(locks.extend_lock(hand.keys, "a", "t1", lock_ms=1000)) is True
        assert hand.run(locks.extend_lock(hand.keys, "a", "another", lock_ms=1000)) is False
        assert hand.run(locks.extend_lock(hand.keys, "nobody", "t1", lock_ms=1000)) is False

    def test_end_when_a_lock_is_given_up(self, hand: Hand) -> None:
        hand.add("a")
        hand.take()
        assert hand.run(locks.release_lock(hand.keys, "a", "another", lock_ms=1000)) is False
        assert hand.run(locks.release_lock(hand.keys, "a", "t1", lock_ms=1000)) is True
        assert hand.run(locks.extend_locks(hand.keys, [("a", "t1")], lock_ms=1000)) == ["a"]


class TestALockThatRanOut:
    @staticmethod
    def taken(hand: Hand, *ids: str) -> list[HeldLock]:
        hand.add(*ids)
        locked = []
        for job_id, flat in hand.exchange(take=len(ids)).jobs:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            locked.append(
                HeldLock(job_id, "t1", fields[b"ats"], fields.get(b"stc", b""), fields[b"processedOn"])
            )
        return locked

    @staticmethod
    def keep(hand: Hand, held: list[HeldLock]) -> list[str]:
        lost: list[str] = hand.run(locks.extend_locks(hand.keys, held, lock_ms=90_000))
        return lost

    def test_is_retaken_while_nobody_had_the_job(self, hand: Hand, spoil: Callable) -> None:
        held = self.taken(hand, "a", "b", "c")
        spoil("DEL", hand.keys.lock("a"), hand.keys.lock("c"))
        spoil("SADD", hand.keys.stalled, "a", "b", "c")
        assert self.keep(hand, held) == []
        assert [spoil("GET", hand.keys.lock(one.job_id)) for one in held] == [b"t1"] * 3
        assert spoil("PTTL", hand.keys.lock("a")) > 60_000
        assert spoil("EXISTS", hand.keys.stalled) == 0
        assert hand.finish("a").ack_errors == [None]

    def test_is_retaken_from_a_sweep_that_has_not_judged_it(self, hand: Hand, spoil: Callable) -> None:
        held = self.taken(hand, "a")
        begin(hand)
        spoil("DEL", hand.keys.stalled_check, hand.keys.lock("a"))
        assert begin(hand) == 1
        assert self.keep(hand, held) == []
        assert step(hand) == ([], 0)
        assert hand.run(read.get_state(hand.keys, "a")) == "active"

    @staticmethod
    def swept(hand: Hand, spoil: Callable) -> None:
        begin(hand)
        spoil("DEL", hand.keys.stalled_check, hand.keys.lock("a"))
        begin(hand)
        assert step(hand) == (["a"], 0)

    def another_has_it(self, hand: Hand, spoil: Callable) -> None:
        self.swept(hand, spoil)
        assert hand.take(token="t2") == ["a"]

    def another_had_it(self, hand: Hand, spoil: Callable) -> None:
        self.another_has_it(hand, spoil)
        spoil("DEL", hand.keys.lock("a"))

    @staticmethod
    def finished(hand: Hand, spoil: Callable) -> None:
        hand.finish("a")

    @staticmethod
    def gone(hand: Hand, spoil: Callable) -> None:
        spoil("DEL", hand.keys.job("a"), hand.keys.lock("a"))

    @staticmethod
    def added_anew(hand: Hand, spoil: Callable) -> None:
        hand.finish("a", keep=0)
        hand.now += 1
        hand.add("a")
        assert hand.take(token="t2") == ["a"]
        spoil("DEL", hand.keys.lock("a"))

    @staticmethod
    def no_hash(hand: Hand, spoil: Callable) -> None:
        spoil("DEL", hand.keys.job("a"), hand.keys.lock("a"))
        spoil("SET", hand.keys.job("a"), "x")

    @pytest.mark.parametrize(
        "fate",
        ["swept", "another_has_it", "another_had_it", "finished", "gone", "added_anew", "no_hash"],
    )
    def test_is_lost_once_the_job_went_another_way(self, hand: Hand, spoil: Callable, fate: str) -> None:
        held = self.taken(hand, "a")
        getattr(self, fate)(hand, spoil)
        before = spoil("GET", hand.keys.lock("a"))
        assert self.keep(hand, held) == ["a"]
        assert spoil("GET", hand.keys.lock("a")) == before

    def test_is_not_retaken_without_the_fields_of_its_pickup(self, hand: Hand, spoil: Callable) -> None:
        self.taken(hand, "a")
        spoil("DEL", hand.keys.lock("a"))
        assert self.keep(hand, [HeldLock("a", "t1")]) == ["a"]

    def test_waits_for_a_full_server_which_renews_the_others(
        self, start_valkey: Callable[..., Server], keys: QueueKeys
    ) -> None:
        server = start_valkey()
        with server.client() as client, BlockingTransport(server.url) as transport:
            hand = Hand(transport, keys)
            held = self.taken(hand, "a", "b")
            client.delete(keys.lock("a"))
            client.config_set("maxmemory", "1")
            with pytest.raises(RedisOutOfMemory):
                self.keep(hand, held)
            assert client.pttl(keys.lock("b")) > 60_000
            client.config_set("maxmemory", "0")
            assert self.keep(hand, held) == []
            assert client.get(keys.lock("a")) == b"t1"


def test_a_worker_reports_itself_and_is_forgotten_after_its_life(hand: Hand, spoil: Callable) -> None:
    for command in locks.report_worker(hand.keys, "w1", b"{}", now_ms=NOW, life_ms=60_000):
        assert hand.run(command) is None
    assert spoil("GET", hand.keys.toril("worker:w1")) == b"{}"
    for command in locks.report_worker(hand.keys, "w2", b"{}", now_ms=NOW + 120_000, life_ms=60_000):
        hand.run(command)
    assert spoil("ZRANGE", hand.keys.toril("workers"), 0, -1) == [b"w2"]
    assert spoil("PTTL", hand.keys.toril("workers")) > 0


class TestASweep:
    def test_gives_a_job_one_interval_before_it_is_judged(self, hand: Hand, spoil: Callable) -> None:
        hand.add("a")
        hand.take()
        spoil("DEL", hand.keys.lock("a"))
        assert begin(hand) == 0
        assert step(hand) == ([], 0)
        spoil("DEL", hand.keys.stalled_check)
        assert begin(hand) == 1
        assert step(hand) == (["a"], 0)
        assert hand.run(read.get_state(hand.keys, "a")) == "waiting"

    def test_happens_once_in_an_interval(self, hand: Hand) -> None:
        assert begin(hand) == 0
        assert begin(hand) == -1

    def test_trims_the_events(self, hand: Hand, spoil: Callable) -> None:
        hand.add(*(f"j{n}" for n in range(300)))
        spoil("HSET", hand.keys.meta, "opts.maxLenEvents", 10)
        before = spoil("XLEN", hand.keys.events)
        begin(hand)
        assert spoil("XLEN", hand.keys.events) < before

    def test_leaves_jobs_that_are_locked(self, hand: Hand, dead: Callable) -> None:
        dead("gone")
        hand.add("alive")
        hand.take()
        begin(hand)
        assert step(hand) == (["gone"], 0)
        assert hand.run(read.get_state(hand.keys, "alive")) == "active"

    def test_leaves_a_suspect_that_came_back_in_time(
        self, hand: Hand, dead: Callable, spoil: Callable
    ) -> None:
        dead("a")
        assert begin(hand) == 1
        spoil("SET", hand.keys.lock("a"), "t1")
        assert step(hand) == ([], 0)

    def test_judges_nobody_in_a_step_that_a_hanging_server_held_up(
        self, hand: Hand, dead: Callable, spoil: Callable
    ) -> None:
        dead("a")
        brief = Sweep("mine", 1)
        command = locks.sweep_begin(hand.keys, now_ms=NOW, interval_ms=INTERVAL, sweep=brief)
        assert hand.run(command) == 1
        while spoil("EXISTS", hand.keys.toril("sweep")):
            continue
        late = locks.sweep_step(hand.keys, max_stalled=1, suspects=10, sweep=brief)
        assert hand.run(late) == ([], 0)
        assert hand.run(read.get_state(hand.keys, "a")) == "active"
        assert begin(hand) == 1  # whoever sweeps next goes on
        assert hand.run(late) == ([], 0)
        assert step(hand) == (["a"], 0)

    def test_leaves_a_suspect_that_finished_meanwhile(
        self, hand: Hand, dead: Callable, spoil: Callable
    ) -> None:
        dead("a")
        begin(hand)
        spoil("SET", hand.keys.lock("a"), "t1")
        assert hand.finish("a").ack_errors == [None]
        assert step(hand) == ([], 0)
        assert hand.run(read.get_state(hand.keys, "a")) == "completed"

    @pytest.mark.parametrize("suspects", [1, 7, 20, 1000])
    def test_moves_everybody_whatever_the_size_of_its_steps(
        self, hand: Hand, dead: Callable, spoil: Callable, suspects: int
    ) -> None:
        ids = dead(*(f"j{n}" for n in range(50)))
        hand.add("alive")
        hand.take()
        left, moved = begin(hand), []
        while left > 0:
            some, left = step(hand, suspects=suspects)
            assert len(some) <= suspects
            moved += some
        assert sorted(moved) == sorted(ids)
        counts = hand.run(read.get_counts(hand.keys))
        assert (counts["wait"], counts["active"]) == (50, 1)
        assert spoil("EXISTS", hand.keys.toril("suspects")) == 0
        stalled = [
            fields["jobId"]
            for _, fields in hand.run(read.range_events(hand.keys))
            if fields["event"] == "stalled"
        ]
        assert sorted(stalled) == sorted(ids)

    def test_that_was_broken_off_is_finished_by_anybody(self, hand: Hand, dead: Callable) -> None:
        dead("a", "b", "c")
        assert begin(hand) == 3
        assert step(hand, suspects=1)[1] == 2
        assert begin(hand) == 2  # though the interval is not over
        moved, left = step(hand)
        assert (len(moved), left) == (2, 0)
        assert begin(hand) == -1

    def test_that_was_broken_off_is_finished_by_the_next_one(
        self, hand: Hand, dead: Callable, spoil: Callable
    ) -> None:
        dead("a", "b", "c")
        begin(hand)
        step(hand, suspects=1)
        spoil("DEL", hand.keys.stalled_check)
        assert begin(hand) == 2
        assert len(step(hand)[0]) == 2

    def test_marks_a_job_that_stalls_too_often(self, hand: Hand, dead: Callable) -> None:
        dead("a")
        begin(hand)
        assert step(hand, max_stalled=0) == (["a"], 0)
        assert hand.run(read.get_fields(hand.keys, "a", ["stc", "defa"])) == [
            b"1",
            b"job stalled more than allowable limit",
        ]

    @pytest.mark.parametrize("others", [2, 40])
    @pytest.mark.parametrize("poison", ["opts", "stc", "type"])
    def test_survives_a_poisoned_job(
        self, hand: Hand, dead: Callable, spoil: Callable, poison: str, others: int
    ) -> None:
        """Upstream's ends half way: the job has left `active` by then and is nowhere."""
        ids = dead("bad", *(f"j{n}" for n in range(others)))
        if poison == "type":
            spoil("DEL", hand.keys.job("bad"))
            spoil("SET", hand.keys.job("bad"), "no hash")
        else:
            spoil("HSET", hand.keys.job("bad"), poison, "{not json")
        begin(hand)
        moved, _ = step(hand, max_stalled=0)
        assert sorted(moved) == sorted(ids)
        assert spoil("LLEN", hand.keys.wait) == len(ids)
        if poison != "type":
            assert hand.run(read.get_fields(hand.keys, "bad", ["defa"])) != [None]

    @pytest.mark.parametrize("others", [0, 40])
    def test_throws_markers_of_old_versions_away(
        self, hand: Hand, dead: Callable, spoil: Callable, others: int
    ) -> None:
        ids = dead(*(f"j{n}" for n in range(others))) if others else []
        spoil("LPUSH", hand.keys.active, "0:0")
        spoil("SADD", hand.keys.stalled, "0:0")
        begin(hand)
        assert sorted(step(hand)[0]) == sorted(ids)
        assert spoil("LLEN", hand.keys.active) == 0
        assert spoil("EXISTS", hand.keys.stalled) == 0

    def test_of_a_paused_queue_wakes_nobody(self, hand: Hand, dead: Callable, spoil: Callable) -> None:
        from toril.commands import manage

        dead("a")
        hand.run(manage.pause(hand.keys))
        spoil("DEL", hand.keys.marker)
        begin(hand)
        step(hand)
        assert spoil("LRANGE", hand.keys.paused, 0, -1) == [b"a"]
        assert spoil("EXISTS", hand.keys.marker) == 0


def test_the_official_sweep_is_there_to_be_compared_with(hand: Hand, dead: Callable) -> None:
    dead("a")
    sweep = locks.sweep_at_once(hand.keys, max_stalled=1, now_ms=NOW, interval_ms=INTERVAL)
    assert hand.run(sweep) == ["a"]
    assert hand.run(sweep) == []


def test_jobs_of_a_dead_worker_run_again_in_one_order(hand: Hand, dead: Callable) -> None:
    ids = dead(*(f"j{n}" for n in range(20)))
    begin(hand)
    moved, _ = step(hand)
    assert sorted(moved) == sorted(ids)
    pickup = worker.Pickup(token="t2", lock_ms=1000)
    taken = hand.run(worker.settle(hand.keys, [], take=20, pickup=pickup, now_ms=NOW)).jobs
    assert [job_id for job_id, _ in taken] == list(reversed(moved))
