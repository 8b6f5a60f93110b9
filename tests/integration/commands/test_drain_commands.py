"""A drain in bounded calls: what waited when it began goes, whatever happens meanwhile; what arrives later stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.interop.difference import differences, report
from tests.interop.draining import drain_all
from tests.interop.keyspace import dump
from tests.servers import Server
from toril.commands import cleaning, manage, read, schedulers
from toril.commands.once import Calls
from toril.commands.schedulers import SchedulerToAdd
from toril.protocol.keys import QueueKeys

OLD = [f"old{n}" for n in range(12)]


class Drain:
    """A drain, call by call."""

    def __init__(self, driver: QueueDriver, *, delayed: bool = True, most: int = 4) -> None:
        self._driver = driver
        self._delayed = delayed
        self._most = most
        self._calls = Calls(driver.keys)
        self._cursor = b""
        self.removed = 0
        self.left_delayed = False

    def step(self) -> bool:
        """One call; False when it was the last one."""
        command = cleaning.drain(
            self._driver.keys,
            most=self._most,
            delayed=self._delayed,
            cursor=self._cursor,
            calls=self._calls,
        )
        step = self._driver.run(command)
        assert step.removed <= self._most
        self.removed += step.removed
        self.left_delayed = step.left_delayed
        self._cursor = step.cursor
        return bool(self._cursor)

    def finish(self) -> int:
        while self.step():
            pass
        return self.removed


@pytest.fixture
def drain(driver: QueueDriver) -> Callable[..., Drain]:
    return lambda **options: Drain(driver, **options)


def left(driver: QueueDriver) -> set[str]:
    states = ["wait", "paused", "prioritized", "delayed"]
    ids = driver.run(read.get_ranges(driver.keys, states))
    return set(ids)


def hashes(driver: QueueDriver, client: Any) -> set[str]:
    """The ids of all jobs that have data."""
    base = driver.keys.base
    found = (key.decode().removeprefix(base) for key in client.keys(f"{base}*"))
    return {key for key in found if key.startswith(("old", "new", "repeat:")) and key.count(":") in (0, 2)}


@pytest.fixture
def client(valkey: Server) -> Iterator[Any]:
    with valkey.client() as client:
        yield client


# Where jobs wait → the options that bring them there.
PLACES: dict[str, dict[str, Any]] = {
    "wait": {},
    "on the right of wait": {"lifo": True},
    "prioritized": {"priority": 5},
    "delayed": {"delay": 60_000},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("arrives", PLACES)
def test_what_arrives_while_a_drain_works_stays(
    driver: QueueDriver, client: Any, drain: Callable[..., Drain], place: str, arrives: str
) -> None:
    driver.add(*OLD, **PLACES[place])
    work = drain()
    new: set[str] = set()
    driver.now = 1  # a producer whose clock stands still: times tell nothing of what came first
    more = True
    while more:
        more = work.step()
        if more:
            options = PLACES[arrives] | ({"priority": 1 + len(new)} if arrives == "prioritized" else {})
            driver.add(f"new{len(new)}", **options)
            new.add(f"new{len(new)}")
    assert new
    assert work.removed == len(OLD)
    assert left(driver) == new
    assert hashes(driver, client) == new


@pytest.mark.parametrize("place", PLACES)
def test_a_drain_that_nobody_goes_on_with_leaves_ordinary_jobs(
    driver: QueueDriver, client: Any, drain: Callable[..., Drain], place: str
) -> None:
    driver.add(*OLD, **PLACES[place])
    work = drain()
    assert work.step()
    waiting = left(driver)
    assert len(waiting) == len(OLD) - work.removed
    assert hashes(driver, client) == waiting
    if place != "delayed":
        assert set(driver.take(20)) == waiting
    for key in client.keys(f"{driver.keys.base}toril:*"):
        assert client.pttl(key) > 0, key


def test_workers_and_a_drain_share_the_jobs(driver: QueueDriver, drain: Callable[..., Drain]) -> None:
    driver.add(*OLD)
    work = drain(most=2)
    taken: list[str] = []
    while work.step():
        taken += driver.take(1)
    taken += driver.take(10)
    assert work.removed + len(taken) == len(OLD)
    assert len(set(taken)) == len(taken)


def test_all_that_workers_took_ends_a_drain(driver: QueueDriver, drain: Callable[..., Drain]) -> None:
    driver.add(*OLD)
    work = drain()
    work.step()
    assert len(driver.take(20)) == len(OLD) - work.removed
    driver.add("new0")
    driver.add("new1", lifo=True)
    assert work.finish() == 4
    assert left(driver) == {"new0", "new1"}


def test_jobs_that_come_back_from_workers_stay(driver: QueueDriver, drain: Callable[..., Drain]) -> None:
    driver.add("new0", "new1")
    driver.take(2)
    driver.add(*OLD)
    work = drain()
    work.step()
    driver.exchange(driver.finished("new0", failed=True))
    driver.run(manage.reprocess(driver.keys, "new0", lifo=True))
    assert work.finish() == len(OLD)
    assert left(driver) == {"new0"}


@pytest.mark.parametrize("first", [manage.pause, manage.resume], ids=["pause", "resume"])
def test_a_pause_or_its_end_does_not_stop_a_drain(
    driver: QueueDriver, drain: Callable[..., Drain], first: Callable[[QueueKeys], Any]
) -> None:
    then = manage.resume if first is manage.pause else manage.pause
    if first is manage.resume:
        driver.run(manage.pause(driver.keys))
    driver.add(*OLD)
    work = drain(most=3)
    work.step()
    driver.run(first(driver.keys))
    driver.add("new0")
    work.step()
    driver.run(then(driver.keys))
    driver.add("new1")
    assert work.finish() == len(OLD)
    assert left(driver) == {"new0", "new1"}


def test_jobs_that_others_remove_do_not_stop_a_drain(
    driver: QueueDriver, drain: Callable[..., Drain]
) -> None:
    driver.add(*OLD)
    work = drain(most=2)
    work.step()
    for job_id in OLD[5:10]:  # among them all by which the drain would find its place again
        driver.run(manage.remove(driver.keys, job_id))
    driver.add("new0")
    assert work.finish() == len(OLD) - 5
    assert left(driver) == {"new0"}


def test_two_drains_at_once_remove_each_job_once(driver: QueueDriver, drain: Callable[..., Drain]) -> None:
    driver.add(*OLD)
    driver.add(*(f"old{n}" for n in range(20, 30)), priority=2)
    one, other = drain(most=2), drain(most=3)
    going = [one, other]
    while going:
        going = [work for work in going if work.step()]
    assert one.removed + other.removed == 22
    assert left(driver) == set()


class TestWithSchedulers:
    def add_scheduler(self, driver: QueueDriver, name: str, **more: Any) -> str:
        repeat = {"every": 60_000} | more
        tick = SchedulerToAdd(
            id=name, name=name, data=b"{}", options={}, repeat=repeat, next_ms=None, now_ms=NOW
        )
        job_id, _ = driver.run(schedulers.add_scheduler(driver.keys, tick))
        return str(job_id)

    @pytest.mark.parametrize("before", [0, 1, 5, 11, 12])
    @pytest.mark.parametrize("paused", [False, True])
    def test_the_next_run_of_a_scheduler_keeps_its_place(
        self, driver: QueueDriver, client: Any, drain: Callable[..., Drain], before: int, paused: bool
    ) -> None:
        if paused:
            driver.run(manage.pause(driver.keys))
        driver.add(*OLD[:before])
        run = self.add_scheduler(driver, "tick")
        if driver.run(read.get_state(driver.keys, run)) == "delayed":
            driver.run(manage.promote(driver.keys, run))
        driver.add(*OLD[before:])
        work = drain()
        assert work.finish() == len(OLD)
        assert left(driver) == {run}
        assert hashes(driver, client) == {run}
        if paused:
            driver.run(manage.resume(driver.keys))
        assert driver.take(5) == [run]

    def test_a_delayed_next_run_stays_delayed(
        self, driver: QueueDriver, client: Any, drain: Callable[..., Drain]
    ) -> None:
        run = self.add_scheduler(driver, "tick", startDate=NOW + 3_600_000)
        other = self.add_scheduler(driver, "a:b", startDate=NOW + 7_200_000)
        driver.add(*OLD, delay=5_400_000)
        due = [client.zscore(driver.keys.delayed, one) for one in (run, other)]
        assert drain().finish() == len(OLD)
        assert left(driver) == {run, other}
        assert [client.zscore(driver.keys.delayed, one) for one in (run, other)] == due

    def test_a_run_of_no_scheduler_goes(self, driver: QueueDriver, drain: Callable[..., Drain]) -> None:
        run = self.add_scheduler(driver, "tick", startDate=NOW + 3_600_000)
        driver.run(schedulers.remove_scheduler(driver.keys, "tick"))
        driver.add(run, "repeat:other:5", delay=60_000)
        assert drain().finish() == 2
        assert left(driver) == set()

    def test_upstream_ends_a_scheduler_that_has_jobs_behind_it(
        self, driver: QueueDriver, client: Any
    ) -> None:
        """What ours must not do, and what the doctor looks for."""
        driver.add("old0")
        run = self.add_scheduler(driver, "tick")
        driver.add("old1")
        driver.run(cleaning.official_drain(driver.keys))
        (orphan,) = client.lrange(driver.keys.wait, 0, -1)
        assert not client.exists(driver.keys.job(orphan.decode()))
        assert driver.run(read.get_state(driver.keys, run)) == "unknown"


def test_ids_without_data_leave_their_lists(
    driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any]
) -> None:
    driver.add(*OLD)
    raw_command("DEL", driver.keys.job("old3"))
    raw_command("LPUSH", driver.keys.wait, "orphan")
    assert drain().finish() == len(OLD) + 1
    assert left(driver) == set()


class TestEventsThatWereTrimmed:
    """No event tells what arrived: lists go on by their order, prioritized jobs by their numbers, delayed ones stay."""

    def step(self, driver: QueueDriver, work: Drain, raw_command: Callable[..., Any]) -> None:
        work.step()
        driver.add("new0")
        driver.add("new1", lifo=True)
        driver.add("new2", priority=7)
        driver.add("new3", delay=60_000)
        raw_command("XTRIM", driver.keys.events, "MAXLEN", 0)

    def test_let_a_list_be_drained(
        self, driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any]
    ) -> None:
        driver.add(*OLD)
        work = drain()
        self.step(driver, work, raw_command)
        assert work.finish() == len(OLD)
        assert left(driver) == {"new0", "new1", "new2", "new3"}

    @pytest.mark.parametrize("other", [1, 9])
    def test_let_prioritized_jobs_be_drained(
        self, driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any], other: int
    ) -> None:
        driver.add(*OLD, **PLACES["prioritized"])
        work = drain()
        self.step(driver, work, raw_command)
        driver.add("new4", priority=other)
        assert work.finish() == len(OLD)
        assert left(driver) == {"new0", "new1", "new2", "new3", "new4"}

    def test_leave_prioritized_jobs_alone_whose_numbers_may_have_begun_anew(
        self, driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any]
    ) -> None:
        driver.add(*OLD, **PLACES["prioritized"])
        work = drain()
        work.step()
        raw_command("DEL", driver.keys.prioritized, driver.keys.pc)
        driver.add("new0", "new1", priority=1)
        raw_command("XTRIM", driver.keys.events, "MAXLEN", 0)
        assert work.finish() == 4
        assert left(driver) == {"new0", "new1"}

    def test_leave_delayed_jobs_alone_and_say_so(
        self, driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any]
    ) -> None:
        driver.add(*OLD, **PLACES["delayed"])
        work = drain()
        self.step(driver, work, raw_command)
        assert work.finish() == 4
        assert work.left_delayed
        assert left(driver) >= {"new0", "new1", "new2", "new3"}

    @pytest.mark.parametrize("place", PLACES)
    def test_are_noticed_though_there_was_none_when_the_drain_began(
        self, driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any], place: str
    ) -> None:
        driver.add(*OLD, **PLACES[place])
        raw_command("DEL", driver.keys.events)
        work = drain()
        self.step(driver, work, raw_command)
        work.finish()
        assert left(driver) >= {"new0", "new1", "new2", "new3"}


def test_more_events_than_one_call_reads_are_read_by_several(
    driver: QueueDriver, drain: Callable[..., Drain], raw_command: Callable[..., Any]
) -> None:
    driver.add(*OLD, delay=60_000)
    work = drain()
    work.step()
    driver.add(*(f"new{n}" for n in range(3000)), delay=60_000)
    removed = work.removed
    assert work.step()
    assert work.removed == removed  # two events for each job, five thousand at once
    assert work.finish() == len(OLD)
    assert len(left(driver)) == 3000


def test_a_full_server_can_be_drained(start_valkey: Callable[..., Server], prefix: str) -> None:
    from toril.transport import BlockingTransport

    server = start_valkey(maxmemory_policy="noeviction")
    with BlockingTransport(server.url) as transport, server.client() as client:
        driver = QueueDriver(transport, QueueKeys("paint", prefix, hash_tag=False))
        driver.add(*OLD)
        driver.add("old98", priority=2)
        driver.add("old99", delay=60_000)
        client.config_set("maxmemory", 1)
        assert Drain(driver).finish() == len(OLD) + 2
        assert left(driver) == set()


@pytest.mark.parametrize("delayed", [False, True])
def test_children_and_parents_are_treated_as_upstream_does(
    driver: QueueDriver, valkey: Server, prefix: str, delayed: bool
) -> None:
    """A parent of the same queue goes with its last child, one of another queue goes to its own wait."""
    there = QueueKeys("elsewhere", prefix, hash_tag=False)
    outcomes = []
    with valkey.client() as client:
        for at_once in (True, False):
            client.flushall()
            for keys in (driver.keys, there):
                QueueDriver(driver.transport, keys).add("old-parent", waits_for_children=True)
                parent = {"id": "old-parent", "queueKey": keys.qualified}
                for child in ("a", "b"):
                    name = f"old-{keys.name}-{child}"
                    driver.add(name, parent=parent, parent_key=keys.job("old-parent"))
            driver.add("old-later", delay=60_000)
            driver.add("old-first", priority=3, de={"id": "same"})
            if at_once:
                driver.run(cleaning.official_drain(driver.keys, delayed=delayed))
            else:
                drain_all(driver.run, driver.keys, delayed=delayed, most=1)
            outcomes.append(dump(client, prefix))
    found = differences(*outcomes)
    assert not found, report(found, left="upstream", right="ours")
    assert f"{prefix}:elsewhere:old-parent" in outcomes[1]
    assert f"{prefix}:paint:old-parent" not in outcomes[1]
