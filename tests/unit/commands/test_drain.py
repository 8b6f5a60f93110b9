"""A drain in bounded calls: what waited when it began goes, whatever happens meanwhile; what arrives later stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.difference import differences, report
from tests.interop.draining import drain_all
from tests.interop.keyspace import dump
from tests.servers import Server
from tests.unit.commands.conftest import NOW, Hand
from toril.commands import manage, read, schedulers
from toril.commands.once import Calls
from toril.commands.schedulers import SchedulerToAdd
from toril.protocol.keys import QueueKeys

OLD = [f"old{n}" for n in range(12)]


class Drain:
    """A drain, call by call."""

    def __init__(self, hand: Hand, *, delayed: bool = True, most: int = 4) -> None:
        self._hand = hand
        self._delayed = delayed
        self._most = most
        self._calls = Calls(hand.keys)
        self._stopped = b""
        self.removed = 0
        self.left_delayed = False

    def step(self) -> bool:
        """One call; False when it was the last one."""
        command = manage.drain(
            self._hand.keys,
            most=self._most,
            delayed=self._delayed,
            stopped=self._stopped,
            calls=self._calls,
        )
        step = self._hand.run(command)
        assert step.removed <= self._most
        self.removed += step.removed
        self.left_delayed = step.left_delayed
        self._stopped = step.stopped
        return bool(self._stopped)

    def finish(self) -> int:
        while self.step():
            pass
        return self.removed


@pytest.fixture
def drain(hand: Hand) -> Callable[..., Drain]:
    return lambda **options: Drain(hand, **options)


def left(hand: Hand) -> set[str]:
    states = ["wait", "paused", "prioritized", "delayed"]
    return set(hand.run(read.get_ranges(hand.keys, states)))


def hashes(hand: Hand, client: Any) -> set[str]:
    """The ids of all jobs that have data."""
    base = hand.keys.base
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
    hand: Hand, client: Any, drain: Callable[..., Drain], place: str, arrives: str
) -> None:
    hand.add(*OLD, **PLACES[place])
    work = drain()
    new: set[str] = set()
    hand.now = 1  # a producer whose clock stands still: times tell nothing of what came first
    more = True
    while more:
        more = work.step()
        if more:
            options = PLACES[arrives] | ({"priority": 1 + len(new)} if arrives == "prioritized" else {})
            hand.add(f"new{len(new)}", **options)
            new.add(f"new{len(new)}")
    assert new
    assert work.removed == len(OLD)
    assert left(hand) == new
    assert hashes(hand, client) == new


@pytest.mark.parametrize("place", PLACES)
def test_a_drain_that_nobody_goes_on_with_leaves_ordinary_jobs(
    hand: Hand, client: Any, drain: Callable[..., Drain], place: str
) -> None:
    hand.add(*OLD, **PLACES[place])
    work = drain()
    assert work.step()
    waiting = left(hand)
    assert len(waiting) == len(OLD) - work.removed
    assert hashes(hand, client) == waiting
    if place != "delayed":
        assert set(hand.take(20)) == waiting
    for key in client.keys(f"{hand.keys.base}toril:*"):
        assert client.pttl(key) > 0, key


def test_workers_and_a_drain_share_the_jobs(hand: Hand, drain: Callable[..., Drain]) -> None:
    hand.add(*OLD)
    work = drain(most=2)
    taken: list[str] = []
    while work.step():
        taken += hand.take(1)
    taken += hand.take(10)
    assert work.removed + len(taken) == len(OLD)
    assert len(set(taken)) == len(taken)


def test_all_that_workers_took_ends_a_drain(hand: Hand, drain: Callable[..., Drain]) -> None:
    hand.add(*OLD)
    work = drain()
    work.step()
    assert len(hand.take(20)) == len(OLD) - work.removed
    hand.add("new0")
    hand.add("new1", lifo=True)
    assert work.finish() == 4
    assert left(hand) == {"new0", "new1"}


def test_jobs_that_come_back_from_workers_stay(hand: Hand, drain: Callable[..., Drain]) -> None:
    hand.add("new0", "new1")
    hand.take(2)
    hand.add(*OLD)
    work = drain()
    work.step()
    hand.exchange(hand.finished("new0", failed=True))
    hand.run(manage.reprocess(hand.keys, "new0", lifo=True))
    assert work.finish() == len(OLD)
    assert left(hand) == {"new0"}


@pytest.mark.parametrize("first", [manage.pause, manage.resume], ids=["pause", "resume"])
def test_a_pause_or_its_end_does_not_stop_a_drain(
    hand: Hand, drain: Callable[..., Drain], first: Callable[[QueueKeys], Any]
) -> None:
    then = manage.resume if first is manage.pause else manage.pause
    if first is manage.resume:
        hand.run(manage.pause(hand.keys))
    hand.add(*OLD)
    work = drain(most=3)
    work.step()
    hand.run(first(hand.keys))
    hand.add("new0")
    work.step()
    hand.run(then(hand.keys))
    hand.add("new1")
    assert work.finish() == len(OLD)
    assert left(hand) == {"new0", "new1"}


def test_jobs_that_others_remove_do_not_stop_a_drain(hand: Hand, drain: Callable[..., Drain]) -> None:
    hand.add(*OLD)
    work = drain(most=2)
    work.step()
    for job_id in OLD[5:10]:  # among them all by which the drain would find its place again
        hand.run(manage.remove(hand.keys, job_id))
    hand.add("new0")
    assert work.finish() == len(OLD) - 5
    assert left(hand) == {"new0"}


def test_two_drains_at_once_remove_each_job_once(hand: Hand, drain: Callable[..., Drain]) -> None:
    hand.add(*OLD)
    hand.add(*(f"old{n}" for n in range(20, 30)), priority=2)
    one, other = drain(most=2), drain(most=3)
    going = [one, other]
    while going:
        going = [work for work in going if work.step()]
    assert one.removed + other.removed == 22
    assert left(hand) == set()


class TestWithSchedulers:
    def add_scheduler(self, hand: Hand, name: str, **more: Any) -> str:
        repeat = {"every": 60_000} | more
        tick = SchedulerToAdd(
            id=name, name=name, data=b"{}", options={}, repeat=repeat, next_ms=None, now_ms=NOW
        )
        job_id, _ = hand.run(schedulers.add_scheduler(hand.keys, tick))
        return str(job_id)

    @pytest.mark.parametrize("before", [0, 1, 5, 11, 12])
    @pytest.mark.parametrize("paused", [False, True])
    def test_the_next_run_of_a_scheduler_keeps_its_place(
        self, hand: Hand, client: Any, drain: Callable[..., Drain], before: int, paused: bool
    ) -> None:
        if paused:
            hand.run(manage.pause(hand.keys))
        hand.add(*OLD[:before])
        run = self.add_scheduler(hand, "tick")
        if hand.run(read.get_state(hand.keys, run)) == "delayed":
            hand.run(manage.promote(hand.keys, run))
        hand.add(*OLD[before:])
        work = drain()
        assert work.finish() == len(OLD)
        assert left(hand) == {run}
        assert hashes(hand, client) == {run}
        if paused:
            hand.run(manage.resume(hand.keys))
        assert hand.take(5) == [run]

    def test_a_delayed_next_run_stays_delayed(
        self, hand: Hand, client: Any, drain: Callable[..., Drain]
    ) -> None:
        run = self.add_scheduler(hand, "tick", startDate=NOW + 3_600_000)
        other = self.add_scheduler(hand, "a:b", startDate=NOW + 7_200_000)
        hand.add(*OLD, delay=5_400_000)
        due = [client.zscore(hand.keys.delayed, one) for one in (run, other)]
        assert drain().finish() == len(OLD)
        assert left(hand) == {run, other}
        assert [client.zscore(hand.keys.delayed, one) for one in (run, other)] == due

    def test_a_run_of_no_scheduler_goes(self, hand: Hand, drain: Callable[..., Drain]) -> None:
        run = self.add_scheduler(hand, "tick", startDate=NOW + 3_600_000)
        hand.run(schedulers.remove_scheduler(hand.keys, "tick"))
        hand.add(run, "repeat:other:5", delay=60_000)
        assert drain().finish() == 2
        assert left(hand) == set()

    def test_upstream_ends_a_scheduler_that_has_jobs_behind_it(self, hand: Hand, client: Any) -> None:
        """What ours must not do, and what the doctor looks for."""
        hand.add("old0")
        run = self.add_scheduler(hand, "tick")
        hand.add("old1")
        hand.run(manage.drain_at_once(hand.keys))
        (ghost,) = client.lrange(hand.keys.wait, 0, -1)
        assert not client.exists(hand.keys.job(ghost.decode()))
        assert hand.run(read.get_state(hand.keys, run)) == "unknown"


def test_ids_without_data_leave_their_lists(
    hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any]
) -> None:
    hand.add(*OLD)
    spoil("DEL", hand.keys.job("old3"))
    spoil("LPUSH", hand.keys.wait, "ghost")
    assert drain().finish() == len(OLD) + 1
    assert left(hand) == set()


class TestEventsThatWereTrimmed:
    """No event tells what arrived: lists go on by their order, prioritized jobs by their numbers, delayed ones stay."""

    def step(self, hand: Hand, work: Drain, spoil: Callable[..., Any]) -> None:
        work.step()
        hand.add("new0")
        hand.add("new1", lifo=True)
        hand.add("new2", priority=7)
        hand.add("new3", delay=60_000)
        spoil("XTRIM", hand.keys.events, "MAXLEN", 0)

    def test_let_a_list_be_drained(
        self, hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any]
    ) -> None:
        hand.add(*OLD)
        work = drain()
        self.step(hand, work, spoil)
        assert work.finish() == len(OLD)
        assert left(hand) == {"new0", "new1", "new2", "new3"}

    @pytest.mark.parametrize("other", [1, 9])
    def test_let_prioritized_jobs_be_drained(
        self, hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any], other: int
    ) -> None:
        hand.add(*OLD, **PLACES["prioritized"])
        work = drain()
        self.step(hand, work, spoil)
        hand.add("new4", priority=other)
        assert work.finish() == len(OLD)
        assert left(hand) == {"new0", "new1", "new2", "new3", "new4"}

    def test_leave_prioritized_jobs_alone_whose_numbers_may_have_begun_anew(
        self, hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any]
    ) -> None:
        hand.add(*OLD, **PLACES["prioritized"])
        work = drain()
        work.step()
        spoil("DEL", hand.keys.prioritized, hand.keys.pc)
        hand.add("new0", "new1", priority=1)
        spoil("XTRIM", hand.keys.events, "MAXLEN", 0)
        assert work.finish() == 4
        assert left(hand) == {"new0", "new1"}

    def test_leave_delayed_jobs_alone_and_say_so(
        self, hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any]
    ) -> None:
        hand.add(*OLD, **PLACES["delayed"])
        work = drain()
        self.step(hand, work, spoil)
        assert work.finish() == 4
        assert work.left_delayed
        assert left(hand) >= {"new0", "new1", "new2", "new3"}

    @pytest.mark.parametrize("place", PLACES)
    def test_are_noticed_though_there_was_none_when_the_drain_began(
        self, hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any], place: str
    ) -> None:
        hand.add(*OLD, **PLACES[place])
        spoil("DEL", hand.keys.events)
        work = drain()
        self.step(hand, work, spoil)
        work.finish()
        assert left(hand) >= {"new0", "new1", "new2", "new3"}


def test_more_events_than_one_call_reads_are_read_by_several(
    hand: Hand, drain: Callable[..., Drain], spoil: Callable[..., Any]
) -> None:
    hand.add(*OLD, delay=60_000)
    work = drain()
    work.step()
    hand.add(*(f"new{n}" for n in range(3000)), delay=60_000)
    removed = work.removed
    assert work.step()
    assert work.removed == removed  # two events for each job, five thousand at once
    assert work.finish() == len(OLD)
    assert len(left(hand)) == 3000


def test_a_full_server_can_be_drained(start_valkey: Callable[..., Server], prefix: str) -> None:
    from toril.transport import BlockingTransport

    server = start_valkey(maxmemory_policy="noeviction")
    with BlockingTransport(server.url) as transport, server.client() as client:
        hand = Hand(transport, QueueKeys("paint", prefix, hash_tag=False))
        hand.add(*OLD)
        hand.add("old98", priority=2)
        hand.add("old99", delay=60_000)
        client.config_set("maxmemory", 1)
        assert Drain(hand).finish() == len(OLD) + 2
        assert left(hand) == set()


@pytest.mark.parametrize("delayed", [False, True])
def test_children_and_parents_are_treated_as_upstream_does(
    hand: Hand, valkey: Server, prefix: str, delayed: bool
) -> None:
    """A parent of the same queue goes with its last child, one of another queue goes to its own wait."""
    there = QueueKeys("elsewhere", prefix, hash_tag=False)
    outcomes = []
    with valkey.client() as client:
        for at_once in (True, False):
            client.flushall()
            for keys in (hand.keys, there):
                Hand(hand.transport, keys).add("old-parent", waits_for_children=True)
                parent = {"id": "old-parent", "queueKey": keys.qualified}
                for child in ("a", "b"):
                    name = f"old-{keys.name}-{child}"
                    hand.add(name, parent=parent, parent_key=keys.job("old-parent"))
            hand.add("old-later", delay=60_000)
            hand.add("old-first", priority=3, de={"id": "same"})
            if at_once:
                hand.run(manage.drain_at_once(hand.keys, delayed=delayed))
            else:
                drain_all(hand.run, hand.keys, delayed=delayed, most=1)
            outcomes.append(dump(client, prefix))
    found = differences(*outcomes)
    assert not found, report(found, left="upstream", right="ours")
    assert f"{prefix}:elsewhere:old-parent" in outcomes[1]
    assert f"{prefix}:paint:old-parent" not in outcomes[1]
