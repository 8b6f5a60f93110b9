"""Our scripts leave what upstream's would: on random lives of a queue, and where lives seldom go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.commands.official_reference import Batched, OneByOne, Side
from tests.integration.commands.random_batches import EXAMPLES, START_MS, RandomBatches
from tests.interop.difference import differences, report
from tests.interop.keyspace import dump
from tests.servers import Server
from toril.commands.add import JobToAdd
from toril.commands.worker import FetchReply, Pickup, Settlement, finish_options, packed_fields
from toril.errors import JobNotFound, JobNotInState, LockMissing
from toril.protocol.keys import QueueKeys


@pytest.fixture
def clients(server: Server) -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """Two databases of one server, so that keys have the same names on both sides."""
    with redis.Redis(port=server.port, db=0) as one, redis.Redis(port=server.port, db=1) as other:
        yield one, other


@pytest.mark.timeout(600)
@pytest.mark.parametrize("with_limits", [True, False], ids=["with limits", "without limits"])
def test_batches_leave_what_single_scripts_leave(
    clients: tuple[redis.Redis, redis.Redis], prefix: str, with_limits: bool
) -> None:
    """Without pauses and limits most of the work is plain, and goes the short way through our scripts."""
    queue = QueueKeys("q", prefix, hash_tag=False)

    class Life(RandomBatches):
        keys = queue
        reference = OneByOne(clients[0], queue)
        tested = Batched(clients[1], queue)
        limits = with_limits

    run_state_machine_as_test(Life, settings=EXAMPLES)
    assert Life.compared > EXAMPLES.max_examples


def test_plain_jobs_are_added_on_the_short_way(valkey: Server, prefix: str) -> None:
    """The results are the same on the long way, so only the server's own count can tell."""
    keys = QueueKeys("q", prefix, hash_tag=False)
    jobs = [
        JobToAdd(name="n", data=b"{}", options={"attempts": 1}, timestamp=START_MS, id=f"j{n}")
        for n in range(200)
    ]
    with valkey.client() as client:
        Batched(client, keys).add(jobs[:1])  # The script is known now.
        before = client.info("commandstats")["cmdstat_exists"]["calls"]
        Batched(client, keys).add(jobs[1:])
        assert client.info("commandstats")["cmdstat_exists"]["calls"] - before < 10
        assert client.llen(keys.wait) == 200


def test_jobs_that_are_delayed_together_go_the_short_way(valkey: Server, prefix: str) -> None:
    keys = QueueKeys("q", prefix, hash_tag=False)
    jobs = [JobToAdd(name="n", data=b"{}", options={}, timestamp=START_MS, id=f"j{n}") for n in range(100)]
    pickup = Pickup(token="t1", lock_ms=60_000)
    back = [
        Settlement(job_id=job.id, kind="delayed", token="t1", value=1000, options="1", fields=b"")
        for job in jobs
    ]
    with valkey.client() as client:
        side = Batched(client, keys)
        side.add(jobs)
        assert len(side.settle([], 100, pickup, START_MS).jobs) == 100
        before = client.info("commandstats")
        assert set(side.settle(back, 0, pickup, START_MS).ack_errors) == {None}
        after = client.info("commandstats")
        assert client.zcard(keys.delayed) == 100
    calls = {
        name: figures["calls"] - before.get(name, {"calls": 0})["calls"] for name, figures in after.items()
    }
    assert (calls["cmdstat_ltrim"], calls["cmdstat_zadd"], calls["cmdstat_del"]) == (1, 2, 1)
    assert (calls["cmdstat_hset"], calls["cmdstat_xadd"]) == (100, 100)


class TestLargeBatches:
    """Longer than any run that our scripts do at once, with exceptions among the plain jobs."""

    @pytest.fixture
    def sides(self, clients: tuple[redis.Redis, redis.Redis], prefix: str) -> tuple[OneByOne, Batched]:
        keys = QueueKeys("q", prefix, hash_tag=False)
        return OneByOne(clients[0], keys), Batched(clients[1], keys, suspects_a_step=100)

    def add(self, sides: tuple[OneByOne, Batched], count: int) -> None:
        jobs = [self.job(sides[0].keys, number) for number in range(count)]
        same(sides, lambda side: side.add(jobs))

    def job(self, keys: QueueKeys, number: int) -> JobToAdd:
        options: dict[str, Any] = {"attempts": 1}
        if number % 97 == 5:
            options["priority"] = 3
        if number % 89 == 7:
            options["delay"] = 10
        if number % 83 == 11:
            options["de"] = {"id": f"d{number % 2}"}
        return JobToAdd(name="job", data=b"{}", options=options, timestamp=START_MS, id=f"j{number}")

    def pickup(self, token: str) -> Pickup:
        return Pickup(token=token, lock_ms=60_000, worker="w1")

    def test_are_taken_and_settled_alike(self, sides: tuple[OneByOne, Batched]) -> None:
        self.add(sides, 1300)
        first = self.pickup("t1")
        taken = same(sides, lambda side: side.settle([], 1200, first, START_MS + 20), jobs_of)
        assert len(taken) > 1100
        self.spoil_some(sides, taken)
        second = self.pickup("t2")
        options = finish_options(pickup=second, token="t1", keep={"count": -1}, attempts=1)
        done = [
            Settlement(job_id=one, kind="completed", token="t1", value='{"n":1}', options=options)
            for one in taken
        ]
        answers = same(sides, lambda side: side.settle(done, 50, second, START_MS + 30), ack_errors_of)
        assert None in answers
        assert LockMissing in answers
        assert_alike(sides)

    def test_are_delayed_alike(self, sides: tuple[OneByOne, Batched]) -> None:
        self.add(sides, 1300)
        taken = same(sides, lambda side: side.settle([], 1200, self.pickup("t1"), START_MS + 20), jobs_of)
        self.spoil_some(sides, taken)
        for side in sides:
            side.client.hset(sides[0].keys.job(taken[60]), "atm", "many")
            side.client.zadd(sides[0].keys.delayed, {"other": (START_MS + 30 + 4) * 4096 + 4090})
        fields = packed_fields({"failedReason": "why", "stacktrace": "[]"})
        back = [
            Settlement(
                job_id=one,
                kind="delayed",
                token="t1",
                value=number % 7,  # many in one millisecond
                options="1" if number == 60 else str(number % 2),
                fields=fields if number % 3 else b"",
            )
            for number, one in enumerate(taken)
        ]
        second = self.pickup("t2")
        answers = same(sides, lambda side: side.settle(back, 50, second, START_MS + 30), ack_errors_of)
        assert None in answers
        assert {LockMissing, JobNotFound, JobNotInState} <= set(answers)
        assert_alike(sides)

    def spoil_some(self, sides: tuple[OneByOne, Batched], taken: list[str]) -> None:
        keys = sides[0].keys
        for side in sides:
            side.client.delete(*(keys.lock(one) for one in taken[3::101]))
            side.client.delete(*(keys.job(one) for one in taken[50::211]))
            side.client.hset(keys.job(taken[77]), "parentKey", keys.job("nobody"))
            side.client.lrem(keys.active, 0, taken[120])
            side.client.sadd(keys.dependencies(taken[33]), keys.job("child"))
            side.client.zadd(f"{keys.job(taken[44])}:unsuccessful", {keys.job("child"): 1})
            side.client.sadd(keys.stalled, *taken[:40])

    @pytest.mark.parametrize("limit", ["0", "1", "150", "1000", None])
    def test_trim_their_events_alike(self, sides: tuple[OneByOne, Batched], limit: str | None) -> None:
        """Upstream trims before each event of a finish, we once for many: the same blocks must be left."""
        keys = sides[0].keys
        self.add(sides, 700)
        for side in sides:
            side.client.hdel(keys.meta, "opts.maxLenEvents")
            if limit is not None:
                side.client.hset(keys.meta, "opts.maxLenEvents", limit)
        taken = same(sides, lambda side: side.settle([], 400, self.pickup("t0"), START_MS), jobs_of)
        for number, size in enumerate([1, 1, 2, 37, 359], start=1):
            done, taken = taken[:size], taken[size:]
            pickup = self.pickup(f"t{number}")
            options = finish_options(pickup=pickup, token="t0", keep={"count": -1}, attempts=1)
            ends = [
                Settlement(job_id=one, kind="completed", token="t0", value="{}", options=options)
                for one in done
            ]
            same(
                sides,
                partial(settle_one_more, ends, pickup),
                jobs_of,
            )
            assert_alike(sides)

    def test_are_swept_alike(self, sides: tuple[OneByOne, Batched]) -> None:
        self.add(sides, 700)
        pickup = self.pickup("t1")
        taken = same(sides, lambda side: side.settle([], 600, pickup, START_MS + 20), jobs_of)
        keys = sides[0].keys
        for side in sides:
            side.sweep(max_stalled=1, now_ms=START_MS)
            side.client.delete(keys.stalled_check, *(keys.lock(one) for one in taken[::2]))
        moved = same(sides, lambda side: side.sweep(max_stalled=0, now_ms=START_MS), sorted)
        assert len(moved) == len(taken[::2])
        # The members of a large set have no order that two databases would share: it follows from the set's history of
        # growing. So the moved jobs may stand in `wait` in another order, and their events with them.
        for side in sides:
            side.client.sort(keys.wait, alpha=True, store=keys.wait)
            events: list[Any] = side.client.xrange(keys.events) or []
            side.client.delete(keys.events)
            for _, fields in sorted(events, key=lambda entry: sorted(entry[1].items())):
                side.client.xadd(keys.events, fields)
        assert_alike(sides)


Spoil = Callable[[redis.Redis, QueueKeys], object]

# What makes a queue with an active job `a` and waiting jobs `b` and `c` special, or a little less plain than others.
SPECIALS: dict[str, Spoil] = {
    "nothing": lambda client, keys: None,
    "attempts were made": lambda client, keys: client.hset(keys.job("a"), "atm", 2),
    "the next was begun before": lambda client, keys: client.hset(keys.job("b"), "ats", 3),
    "a parent": lambda client, keys: client.hset(keys.job("a"), "parentKey", keys.job("nobody")),
    "a deduplication": lambda client, keys: client.hset(keys.job("a"), "deid", "d"),
    "children": lambda client, keys: client.sadd(keys.dependencies("a"), keys.job("child")),
    "failed children": lambda client, keys: client.zadd(
        f"{keys.job('a')}:unsuccessful", {keys.job("child"): 1}
    ),
    "a suspicion": lambda client, keys: client.sadd(keys.stalled, "a", "z"),
    "no lock": lambda client, keys: client.delete(keys.lock("a")),
    "another's lock": lambda client, keys: client.set(keys.lock("a"), "other"),
    "no hash": lambda client, keys: client.delete(keys.job("a")),
    "not active": lambda client, keys: client.lrem(keys.active, 0, "a"),
    "others are active": lambda client, keys: client.rpush(keys.active, "y", "z"),
    "a pause": lambda client, keys: client.hset(keys.meta, "paused", 1),
    "a limit": lambda client, keys: client.hset(keys.meta, "concurrency", 1),
    "a rate": lambda client, keys: client.hset(keys.meta, mapping={"max": 5, "duration": 1000}),
    "no length of events": lambda client, keys: client.hdel(keys.meta, "opts.maxLenEvents"),
    "no other job": lambda client, keys: client.delete(keys.wait),
    "one other job": lambda client, keys: client.lrem(keys.wait, 0, "c"),
    "an old marker": lambda client, keys: client.rpush(keys.wait, "0:7"),
    "the same job next": lambda client, keys: client.rpush(keys.wait, "a"),
    "a job twice": lambda client, keys: client.rpush(keys.wait, "b", "b"),
    "a job twice among the active": lambda client, keys: client.rpush(keys.active, "a", "b"),
    "a job that is due": lambda client, keys: due(client, keys, START_MS - 5),
    "a job that will be due": lambda client, keys: due(client, keys, START_MS + 90_000),
    "only a job that will be due": lambda client, keys: (
        client.delete(keys.wait),
        due(client, keys, START_MS + 90_000),
    ),
    "a job with a priority": lambda client, keys: client.zadd(keys.prioritized, {"p": 2**32 + 1}),
    "only a job with a priority": lambda client, keys: (
        client.delete(keys.wait),
        client.zadd(keys.prioritized, {"p": 2**32 + 1}),
        client.set(keys.pc, 1),
    ),
    "a due job with a priority": lambda client, keys: (
        client.delete(keys.wait),
        client.hset(keys.job("d"), "priority", 7),
        due(client, keys, START_MS - 5),
    ),
}


def due(client: redis.Redis, keys: QueueKeys, when_ms: int) -> object:
    return client.hset(keys.job("d"), "delay", 10), client.zadd(keys.delayed, {"d": when_ms * 4096})


@pytest.mark.parametrize("capacity", [0, 1, 2, 5])
@pytest.mark.parametrize("special", SPECIALS)
def test_one_job_is_settled_and_followed_alike(
    clients: tuple[redis.Redis, redis.Redis], prefix: str, special: str, capacity: int
) -> None:
    """The short ways must do the same as upstream, or leave alone what they do not do."""
    keys = QueueKeys("q", prefix, hash_tag=False)
    sides = OneByOne(clients[0], keys), Batched(clients[1], keys)
    jobs = [JobToAdd(name="job", data=b"{}", options={}, timestamp=START_MS, id=one) for one in "abc"]
    same(sides, lambda side: side.add(jobs))
    first, second = (Pickup(token=one, lock_ms=60_000, worker="w1") for one in ("t1", "t2"))
    assert same(sides, lambda side: side.settle([], 1, first, START_MS), jobs_of) == ["a"]
    for side in sides:
        SPECIALS[special](side.client, keys)
    options = finish_options(pickup=second, token="t1", keep={"count": -1}, attempts=1)
    end = Settlement(job_id="a", kind="completed", token="t1", value="{}", options=options)
    same(sides, lambda side: side.settle([end], capacity, second, START_MS + 1), view_of_reply)
    assert_alike(sides)


# One job that is added without company, and what makes it a little less plain.
LONE_JOBS: dict[str, dict[str, Any]] = {
    "an id of the client": {"id": "new"},
    "an id of the counter": {"id": ""},
    "an id that exists": {"id": "b"},
    "last in, first out": {"id": "new", "options": {"lifo": True, "attempts": 3}},
    "a delay of zero": {"id": "new", "options": {"delay": 0}},
    "a delay": {"id": "new", "options": {"delay": 10}},
    "a priority": {"id": "new", "options": {"priority": 3}},
    "a deduplication": {"id": "new", "options": {"de": {"id": "d"}}},
    "a scheduler": {"id": "new", "repeat_key": "each:day"},
    "words": {"id": "neü", "name": "nämé\0", "data": b'{"deep":[1,2.5,null,"\xc3\xa9"]}'},
}


@pytest.mark.parametrize(
    "special",
    ["nothing", "others are active", "a pause", "a limit", "a rate", "no length of events", "no other job"],
)
@pytest.mark.parametrize("lone", LONE_JOBS)
def test_one_job_is_added_alike(
    clients: tuple[redis.Redis, redis.Redis], prefix: str, lone: str, special: str
) -> None:
    """An add without company has a way of its own through the script."""
    keys = QueueKeys("q", prefix, hash_tag=False)
    sides = OneByOne(clients[0], keys), Batched(clients[1], keys)
    plain: dict[str, Any] = {"name": "job", "data": b"{}", "options": {}, "timestamp": START_MS}
    same(sides, lambda side: side.add([JobToAdd(**plain, id=one) for one in "abc"]))
    same(sides, lambda side: side.settle([], 1, Pickup(token="t1", lock_ms=60_000), START_MS), jobs_of)
    for side in sides:
        side.client.delete(keys.marker)
        SPECIALS[special](side.client, keys)
    same(sides, lambda side: side.add([JobToAdd(**{**plain, **LONE_JOBS[lone]})]))
    assert_alike(sides)


def view_of_reply(fetch_reply: FetchReply) -> Any:
    jobs = [(job_id, dict(zip(flat[::2], flat[1::2], strict=True))) for job_id, flat in fetch_reply.jobs]
    return ack_errors_of(fetch_reply), jobs, fetch_reply.limited_ms, fetch_reply.next_at_ms


def same(
    sides: tuple[OneByOne, Batched],
    act: Callable[[Any], Any],
    view: Callable[[Any], Any] = lambda answer: answer,
) -> Any:
    expected, given = (view(act(side)) for side in sides)
    assert given == expected
    return given


def settle_one_more(ends: list[Settlement], pickup: Pickup, side: Side) -> FetchReply:
    return side.settle(ends, 1, pickup, START_MS + 1)


def jobs_of(fetch_reply: FetchReply) -> list[str]:
    return [job_id for job_id, _ in fetch_reply.jobs]


def ack_errors_of(fetch_reply: FetchReply) -> list[Any]:
    return [None if one is None else type(one) for one in fetch_reply.ack_errors]


def assert_alike(sides: tuple[OneByOne, Batched]) -> None:
    expected, given = (dump(side.client, side.keys.prefix) for side in sides)
    found = differences(expected, given)
    assert not found, report(found[:20], left="one by one", right="batched")
