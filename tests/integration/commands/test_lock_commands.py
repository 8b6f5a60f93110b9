"""Heartbeats and the sweep: nobody's lock is taken, and every job of a dead worker comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import locks, read, worker
from toril.commands.locks import HeldLock, Sweep
from toril.errors import RedisOutOfMemory
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

INTERVAL = 30_000


def begin(driver: QueueDriver) -> int:
    return driver.run(locks.sweep_begin(driver.keys, now_ms=NOW, interval_ms=INTERVAL))


def step(driver: QueueDriver, suspects: int = 100, max_stalled: int = 1) -> tuple[list[str], int]:
    return driver.run(locks.sweep_step(driver.keys, max_stalled=max_stalled, suspects=suspects))


@pytest.fixture
def dead(driver: QueueDriver, raw_command: Callable[..., Any]) -> Callable[..., list[str]]:
    """Takes jobs whose worker then dies: suspected by one sweep, their locks gone, the next sweep may begin."""

    def die(*ids: str) -> list[str]:
        driver.add(*ids)
        assert driver.take(len(ids)) == list(ids)
        begin(driver)
        raw_command("DEL", driver.keys.stalled_check, *(driver.keys.lock(job_id) for job_id in ids))
        return list(ids)

    return die


class TestHeartbeats:
    def test_renew_what_is_ours_and_name_what_is_not(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("ours", "stolen", "expired")
        driver.take(3)
        raw_command("SET", driver.keys.lock("stolen"), "another", "PX", 1000)
        raw_command("DEL", driver.keys.lock("expired"))
        raw_command("SADD", driver.keys.stalled, "ours", "stolen", "expired")
        held = [(job_id, "t1") for job_id in ("ours", "stolen", "expired", "nobody")]
        lost = driver.run(locks.extend_locks(driver.keys, held, lock_ms=90_000))
        assert lost == ["stolen", "expired", "nobody"]
        assert raw_command("PTTL", driver.keys.lock("ours")) > 60_000
        assert raw_command("PTTL", driver.keys.lock("stolen")) <= 1000
        assert raw_command("SMEMBERS", driver.keys.stalled) in (
            [b"stolen", b"expired"],
            {b"stolen", b"expired"},
        )

    def test_of_nobody_are_no_trouble(self, driver: QueueDriver) -> None:
        assert driver.run(locks.extend_locks(driver.keys, [], lock_ms=1000)) == []

    def test_go_on_when_the_server_is_full(
        self, start_valkey: Callable[..., Server], keys: QueueKeys
    ) -> None:
        server = start_valkey()
        with server.client() as client, BlockingTransport(server.url) as transport:
            driver = QueueDriver(transport, keys)
            driver.add("a")
            driver.take()
            client.config_set("maxmemory", "1")
            assert driver.run(locks.extend_locks(keys, [("a", "t1")], lock_ms=90_000)) == []
            assert client.pttl(keys.lock("a")) > 60_000

    def test_can_be_sent_for_one_job(self, driver: QueueDriver) -> None:
        driver.add("a")
        driver.take()
        assert driver.run(locks.extend_lock(driver.keys, "a", "t1", lock_ms=1000)) is True
        assert driver.run(locks.extend_lock(driver.keys, "a", "another", lock_ms=1000)) is False
        assert driver.run(locks.extend_lock(driver.keys, "nobody", "t1", lock_ms=1000)) is False

    def test_end_when_a_lock_is_given_up(self, driver: QueueDriver) -> None:
        driver.add("a")
        driver.take()
        assert driver.run(locks.release_lock(driver.keys, "a", "another", lock_ms=1000)) is False
        assert driver.run(locks.release_lock(driver.keys, "a", "t1", lock_ms=1000)) is True
        assert driver.run(locks.extend_locks(driver.keys, [("a", "t1")], lock_ms=1000)) == ["a"]


class TestALockThatRanOut:
    @staticmethod
    def taken(driver: QueueDriver, *ids: str) -> list[HeldLock]:
        driver.add(*ids)
        locked = []
        for job_id, flat in driver.exchange(take=len(ids)).jobs:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            locked.append(
                HeldLock(job_id, "t1", fields[b"ats"], fields.get(b"stc", b""), fields[b"processedOn"])
            )
        return locked

    @staticmethod
    def keep(driver: QueueDriver, held: list[HeldLock]) -> list[str]:
        lost: list[str] = driver.run(locks.extend_locks(driver.keys, held, lock_ms=90_000))
        return lost

    def test_is_retaken_while_nobody_had_the_job(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        held = self.taken(driver, "a", "b", "c")
        raw_command("DEL", driver.keys.lock("a"), driver.keys.lock("c"))
        raw_command("SADD", driver.keys.stalled, "a", "b", "c")
        assert self.keep(driver, held) == []
        assert [raw_command("GET", driver.keys.lock(one.job_id)) for one in held] == [b"t1"] * 3
        assert raw_command("PTTL", driver.keys.lock("a")) > 60_000
        assert raw_command("EXISTS", driver.keys.stalled) == 0
        assert driver.finish("a").ack_errors == [None]

    def test_is_retaken_from_a_sweep_that_has_not_judged_it(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        held = self.taken(driver, "a")
        begin(driver)
        raw_command("DEL", driver.keys.stalled_check, driver.keys.lock("a"))
        assert begin(driver) == 1
        assert self.keep(driver, held) == []
        assert step(driver) == ([], 0)
        assert driver.run(read.get_state(driver.keys, "a")) == "active"

    @staticmethod
    def swept(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        begin(driver)
        raw_command("DEL", driver.keys.stalled_check, driver.keys.lock("a"))
        begin(driver)
        assert step(driver) == (["a"], 0)

    def another_has_it(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        self.swept(driver, raw_command)
        assert driver.take(token="t2") == ["a"]

    def another_had_it(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        self.another_has_it(driver, raw_command)
        raw_command("DEL", driver.keys.lock("a"))

    @staticmethod
    def finished(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        driver.finish("a")

    @staticmethod
    def gone(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        raw_command("DEL", driver.keys.job("a"), driver.keys.lock("a"))

    @staticmethod
    def added_anew(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        driver.finish("a", keep=0)
        driver.now += 1
        driver.add("a")
        assert driver.take(token="t2") == ["a"]
        raw_command("DEL", driver.keys.lock("a"))

    @staticmethod
    def no_hash(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        raw_command("DEL", driver.keys.job("a"), driver.keys.lock("a"))
        raw_command("SET", driver.keys.job("a"), "x")

    @pytest.mark.parametrize(
        "fate",
        ["swept", "another_has_it", "another_had_it", "finished", "gone", "added_anew", "no_hash"],
    )
    def test_is_lost_once_the_job_went_another_way(
        self, driver: QueueDriver, raw_command: Callable[..., Any], fate: str
    ) -> None:
        held = self.taken(driver, "a")
        getattr(self, fate)(driver, raw_command)
        before = raw_command("GET", driver.keys.lock("a"))
        assert self.keep(driver, held) == ["a"]
        assert raw_command("GET", driver.keys.lock("a")) == before

    def test_is_not_retaken_without_the_fields_of_its_pickup(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        self.taken(driver, "a")
        raw_command("DEL", driver.keys.lock("a"))
        assert self.keep(driver, [HeldLock("a", "t1")]) == ["a"]

    def test_waits_for_a_full_server_which_renews_the_others(
        self, start_valkey: Callable[..., Server], keys: QueueKeys
    ) -> None:
        server = start_valkey()
        with server.client() as client, BlockingTransport(server.url) as transport:
            driver = QueueDriver(transport, keys)
            held = self.taken(driver, "a", "b")
            client.delete(keys.lock("a"))
            client.config_set("maxmemory", "1")
            with pytest.raises(RedisOutOfMemory):
                self.keep(driver, held)
            assert client.pttl(keys.lock("b")) > 60_000
            client.config_set("maxmemory", "0")
            assert self.keep(driver, held) == []
            assert client.get(keys.lock("a")) == b"t1"


def test_a_worker_reports_itself_and_is_forgotten_after_its_life(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    for command in locks.report_worker(driver.keys, "w1", b"{}", now_ms=NOW, expire_ms=60_000):
        assert driver.run(command) is None
    assert raw_command("GET", driver.keys.toril("worker:w1")) == b"{}"
    for command in locks.report_worker(driver.keys, "w2", b"{}", now_ms=NOW + 120_000, expire_ms=60_000):
        driver.run(command)
    assert raw_command("ZRANGE", driver.keys.toril("workers"), 0, -1) == [b"w2"]
    assert raw_command("PTTL", driver.keys.toril("workers")) > 0


class TestASweep:
    def test_gives_a_job_one_interval_before_it_is_judged(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("a")
        driver.take()
        raw_command("DEL", driver.keys.lock("a"))
        assert begin(driver) == 0
        assert step(driver) == ([], 0)
        raw_command("DEL", driver.keys.stalled_check)
        assert begin(driver) == 1
        assert step(driver) == (["a"], 0)
        assert driver.run(read.get_state(driver.keys, "a")) == "waiting"

    def test_happens_once_in_an_interval(self, driver: QueueDriver) -> None:
        assert begin(driver) == 0
        assert begin(driver) == -1

    def test_trims_the_events(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        driver.add(*(f"j{n}" for n in range(300)))
        raw_command("HSET", driver.keys.meta, "opts.maxLenEvents", 10)
        before = raw_command("XLEN", driver.keys.events)
        begin(driver)
        assert raw_command("XLEN", driver.keys.events) < before

    def test_leaves_jobs_that_are_locked(self, driver: QueueDriver, dead: Callable[..., list[str]]) -> None:
        dead("gone")
        driver.add("alive")
        driver.take()
        begin(driver)
        assert step(driver) == (["gone"], 0)
        assert driver.run(read.get_state(driver.keys, "alive")) == "active"

    def test_leaves_a_suspect_that_came_back_in_time(
        self, driver: QueueDriver, dead: Callable[..., list[str]], raw_command: Callable[..., Any]
    ) -> None:
        dead("a")
        assert begin(driver) == 1
        raw_command("SET", driver.keys.lock("a"), "t1")
        assert step(driver) == ([], 0)

    def test_judges_nobody_in_a_step_that_a_hanging_server_held_up(
        self, driver: QueueDriver, dead: Callable[..., list[str]], raw_command: Callable[..., Any]
    ) -> None:
        dead("a")
        brief = Sweep("mine", 1)
        command = locks.sweep_begin(driver.keys, now_ms=NOW, interval_ms=INTERVAL, sweep=brief)
        assert driver.run(command) == 1
        while raw_command("EXISTS", driver.keys.toril("sweep")):
            continue
        late = locks.sweep_step(driver.keys, max_stalled=1, suspects=10, sweep=brief)
        assert driver.run(late) == ([], 0)
        assert driver.run(read.get_state(driver.keys, "a")) == "active"
        assert begin(driver) == 1  # whoever sweeps next goes on
        assert driver.run(late) == ([], 0)
        assert step(driver) == (["a"], 0)

    def test_leaves_a_suspect_that_finished_meanwhile(
        self, driver: QueueDriver, dead: Callable[..., list[str]], raw_command: Callable[..., Any]
    ) -> None:
        dead("a")
        begin(driver)
        raw_command("SET", driver.keys.lock("a"), "t1")
        assert driver.finish("a").ack_errors == [None]
        assert step(driver) == ([], 0)
        assert driver.run(read.get_state(driver.keys, "a")) == "completed"

    @pytest.mark.parametrize("suspects", [1, 7, 20, 1000])
    def test_moves_everybody_whatever_the_size_of_its_steps(
        self,
        driver: QueueDriver,
        dead: Callable[..., list[str]],
        raw_command: Callable[..., Any],
        suspects: int,
    ) -> None:
        ids = dead(*(f"j{n}" for n in range(50)))
        driver.add("alive")
        driver.take()
        left, moved = begin(driver), []
        while left > 0:
            some, left = step(driver, suspects=suspects)
            assert len(some) <= suspects
            moved += some
        assert sorted(moved) == sorted(ids)
        counts = driver.run(read.get_counts(driver.keys))
        assert (counts["wait"], counts["active"]) == (50, 1)
        assert raw_command("EXISTS", driver.keys.toril("suspects")) == 0
        stalled = [
            fields["jobId"]
            for _, fields in driver.run(read.range_events(driver.keys))
            if fields["event"] == "stalled"
        ]
        assert sorted(stalled) == sorted(ids)

    def test_that_was_broken_off_is_finished_by_anybody(
        self, driver: QueueDriver, dead: Callable[..., list[str]]
    ) -> None:
        dead("a", "b", "c")
        assert begin(driver) == 3
        assert step(driver, suspects=1)[1] == 2
        assert begin(driver) == 2  # though the interval is not over
        moved, left = step(driver)
        assert (len(moved), left) == (2, 0)
        assert begin(driver) == -1

    def test_that_was_broken_off_is_finished_by_the_next_one(
        self, driver: QueueDriver, dead: Callable[..., list[str]], raw_command: Callable[..., Any]
    ) -> None:
        dead("a", "b", "c")
        begin(driver)
        step(driver, suspects=1)
        raw_command("DEL", driver.keys.stalled_check)
        assert begin(driver) == 2
        assert len(step(driver)[0]) == 2

    def test_marks_a_job_that_stalls_too_often(
        self, driver: QueueDriver, dead: Callable[..., list[str]]
    ) -> None:
        dead("a")
        begin(driver)
        assert step(driver, max_stalled=0) == (["a"], 0)
        assert driver.run(read.get_fields(driver.keys, "a", ["stc", "defa"])) == [
            b"1",
            b"job stalled more than allowable limit",
        ]

    @pytest.mark.parametrize("others", [2, 40])
    @pytest.mark.parametrize("poison", ["opts", "stc", "type"])
    def test_survives_a_poisoned_job(
        self,
        driver: QueueDriver,
        dead: Callable[..., list[str]],
        raw_command: Callable[..., Any],
        poison: str,
        others: int,
    ) -> None:
        """Upstream's ends half way: the job has left `active` by then and is nowhere."""
        ids = dead("bad", *(f"j{n}" for n in range(others)))
        if poison == "type":
            raw_command("DEL", driver.keys.job("bad"))
            raw_command("SET", driver.keys.job("bad"), "no hash")
        else:
            raw_command("HSET", driver.keys.job("bad"), poison, "{not json")
        begin(driver)
        moved, _ = step(driver, max_stalled=0)
        assert sorted(moved) == sorted(ids)
        assert raw_command("LLEN", driver.keys.wait) == len(ids)
        if poison != "type":
            assert driver.run(read.get_fields(driver.keys, "bad", ["defa"])) != [None]

    @pytest.mark.parametrize("others", [0, 40])
    def test_throws_markers_of_old_versions_away(
        self,
        driver: QueueDriver,
        dead: Callable[..., list[str]],
        raw_command: Callable[..., Any],
        others: int,
    ) -> None:
        ids = dead(*(f"j{n}" for n in range(others))) if others else []
        raw_command("LPUSH", driver.keys.active, "0:0")
        raw_command("SADD", driver.keys.stalled, "0:0")
        begin(driver)
        assert sorted(step(driver)[0]) == sorted(ids)
        assert raw_command("LLEN", driver.keys.active) == 0
        assert raw_command("EXISTS", driver.keys.stalled) == 0

    def test_of_a_paused_queue_wakes_nobody(
        self, driver: QueueDriver, dead: Callable[..., list[str]], raw_command: Callable[..., Any]
    ) -> None:
        from toril.commands import manage

        dead("a")
        driver.run(manage.pause(driver.keys))
        raw_command("DEL", driver.keys.marker)
        begin(driver)
        step(driver)
        assert raw_command("LRANGE", driver.keys.paused, 0, -1) == [b"a"]
        assert raw_command("EXISTS", driver.keys.marker) == 0


def test_the_official_sweep_is_there_to_be_compared_with(
    driver: QueueDriver, dead: Callable[..., list[str]]
) -> None:
    dead("a")
    sweep = locks.official_sweep(driver.keys, max_stalled=1, now_ms=NOW, interval_ms=INTERVAL)
    assert driver.run(sweep) == ["a"]
    assert driver.run(sweep) == []


def test_jobs_of_a_dead_worker_run_again_in_one_order(
    driver: QueueDriver, dead: Callable[..., list[str]]
) -> None:
    ids = dead(*(f"j{n}" for n in range(20)))
    begin(driver)
    moved, _ = step(driver)
    assert sorted(moved) == sorted(ids)
    pickup = worker.Pickup(token="t2", lock_ms=1000)
    taken = driver.run(worker.settle(driver.keys, [], capacity=20, pickup=pickup, now_ms=NOW)).jobs
    assert [job_id for job_id, _ in taken] == list(reversed(moved))
