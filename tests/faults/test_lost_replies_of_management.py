"""Changes of whole queues whose replies are lost: the limit holds, and the count returned is the count done."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.faults.proxy import Kind, Proxy
from tests.servers import Server
from toril import ListQueue, Queue, StreamQueue, sync
from toril.producer.bridge import move_jobs
from toril.protocol.envelope import DeadLetter, Envelope
from toril.protocol.options import Deduplication
from toril.transport import ConnectionPolicy

POLICY = ConnectionPolicy(
    command_timeout=2, connect_timeout=2, reconnect_delay=0.005, max_reconnect_delay=0.02, call_attempts=5
)
# Calls that the server remembers name this key.
REMEMBERED = b":toril:reply:"
LOST: tuple[Kind, ...] = ("cut after", "cut within")
# Moves the waiting jobs to where they would be after an attempt, or a delay.
_MOVE = """
for at, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[2], at, id) end
return redis.call('DEL', KEYS[1])
"""

Check = Callable[[], Awaitable[None]]


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    with Proxy(valkey.port) as proxy:
        yield proxy


async def done(act: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a coroutine function or a blocking one returns."""
    if asyncio.iscoroutinefunction(act):
        return await act(*args, **named)
    return await asyncio.to_thread(act, *args, **named)


class Changed:
    """A queue that is filled directly (`queue`) and changed through the proxy (`through`)."""

    def __init__(self, server: Server, queue: Any, through: Any) -> None:
        self.server = server
        self.queue = queue
        self.through = through
        self.keys = queue.keys

    async def do(self, act: str, /, *args: Any, **named: Any) -> Any:
        found = self.through
        for part in act.split("."):
            found = getattr(found, part)
        return await done(found, *args, **named)


class Bullmq(Changed):
    """A queue of BullMQ."""

    async def fill(self, count: int, where: str = "wait", **options: Any) -> list[str]:
        jobs = await self.queue.add_bulk([("x" if n % 2 else "y", {"n": n}, options) for n in range(count)])
        if where != "wait":
            with self.server.client() as client:
                client.eval(_MOVE, 2, self.keys.wait, self.keys.base + where)
        return [job.id for job in jobs]

    async def counts(self) -> dict[str, int]:
        return {name: n for name, n in (await self.queue.get_job_counts()).as_dict().items() if n}


@pytest.fixture(params=["async", "blocking"])
async def bullmq(request: pytest.FixtureRequest, valkey: Server, proxy: Proxy, prefix: str) -> Any:
    async with Queue("paint", redis=valkey.url, prefix=prefix) as queue:
        if request.param == "async":
            async with Queue("paint", redis=proxy.url, prefix=prefix, policy=POLICY) as through:
                await through.count()
                yield Bullmq(valkey, queue, through)
        else:
            made = sync.Queue("paint", redis=proxy.url, prefix=prefix, policy=POLICY)
            await asyncio.to_thread(made.count)
            yield Bullmq(valkey, queue, made)
            await asyncio.to_thread(made.close)


async def _clean(kind: Bullmq) -> Check:
    await kind.fill(2500)

    async def check() -> None:
        removed = await kind.do("clean", 0, 1500, "waiting")
        assert (len(removed), len(set(removed))) == (1500, 1500)
        assert await kind.counts() == {"waiting": 1000}

    return check


async def _drain(kind: Bullmq) -> Check:
    await kind.fill(1200)
    await kind.fill(30, priority=4)
    await kind.fill(40, delay=60)

    async def check() -> None:
        assert await kind.do("drain", delayed=True) == 1270
        assert await kind.counts() == {}

    return check


async def _retry_jobs(kind: Bullmq) -> Check:
    await kind.fill(2500, "failed")

    async def check() -> None:
        assert await kind.do("retry_jobs", limit=1500) == 1500
        assert await kind.counts() == {"waiting": 1500, "failed": 1000}

    return check


async def _retry_some(kind: Bullmq) -> Check:
    await kind.fill(1000, "failed")

    async def check() -> None:
        assert await kind.do("retry_jobs", name="x", limit=300) == 300
        assert await kind.counts() == {"waiting": 300, "failed": 700}

    return check


async def _promote_jobs(kind: Bullmq) -> Check:
    await kind.fill(2500, delay=60)

    async def check() -> None:
        assert await kind.do("promote_jobs", limit=1500) == 1500
        assert await kind.counts() == {"waiting": 1500, "delayed": 1000}

    return check


async def _obliterate(kind: Bullmq) -> Check:
    await kind.fill(2500)

    async def check() -> None:
        await kind.do("obliterate")
        with kind.server.client() as client:
            assert client.keys(f"{kind.keys.base}*") == []

    return check


async def _pause(kind: Bullmq) -> Check:
    await kind.fill(3)

    async def check() -> None:
        await kind.do("pause")
        assert await kind.counts() == {"paused": 3}
        await kind.do("resume")
        assert await kind.counts() == {"waiting": 3}

    return check


async def _trim_events(kind: Bullmq) -> Check:
    await kind.fill(1000)

    async def check() -> None:
        with kind.server.client() as client:
            before = client.xlen(kind.keys.events)
            assert await kind.do("trim_events", 300) == before - client.xlen(kind.keys.events) > 0

    return check


async def _small_things(kind: Bullmq) -> Check:
    (job_id, *_) = await kind.fill(1)
    await kind.fill(1, deduplication=Deduplication("same"))
    await kind.queue.schedulers.upsert("tick", every=3600)

    async def check() -> None:
        assert await kind.do("add_job_log", job_id, "a line") == 1
        assert (await kind.queue.get_job_logs(job_id)).lines == ["a line"]
        assert await kind.do("remove_deduplication_key", "same") is True
        assert await kind.do("schedulers.remove", "tick") is True
        assert await kind.do("schedulers.remove", "tick") is False

    return check


# What is changed, and how many calls are cut, each in a test of its own.
BULLMQ = {
    "clean": (_clean, 2),
    "drain": (_drain, 3),
    "retry_jobs": (_retry_jobs, 2),
    "retry_jobs by name": (_retry_some, 2),
    "promote_jobs": (_promote_jobs, 2),
    "obliterate": (_obliterate, 3),
    "pause and resume": (_pause, 2),
    "trim_events": (_trim_events, 1),
    "logs, keys and schedulers": (_small_things, 3),
}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize(
    ("what", "after"), [(one, at) for one, (_, calls) in BULLMQ.items() for at in range(calls)]
)
async def test_a_lost_reply_doubles_no_change_of_a_queue(
    bullmq: Bullmq, proxy: Proxy, what: str, after: int, fault: Kind
) -> None:
    check = await BULLMQ[what][0](bullmq)
    armed = proxy.arm(fault, REMEMBERED, after=after)
    await check()
    assert armed.struck.is_set()


@pytest.mark.parametrize("act", ["retry", "promote", "change_priority", "change_delay", "log", "remove"])
@pytest.mark.parametrize("fault", LOST)
async def test_a_lost_reply_doubles_no_change_of_a_job(
    bullmq: Bullmq, proxy: Proxy, act: str, fault: Kind
) -> None:
    where = {"retry": "failed", "promote": "delayed", "change_delay": "delayed"}.get(act, "wait")
    (job_id,) = await bullmq.fill(1, where)
    job = await bullmq.do("get_job", job_id)
    arguments = {"change_priority": (3,), "change_delay": (30,), "log": ("a line",)}.get(act, ())
    armed = proxy.arm(fault, job_id.encode())
    call = getattr(job, act)
    answer = await done(call, *arguments)
    assert armed.struck.is_set()
    assert answer == (1 if act == "log" else None)
    places = {
        "retry": "waiting",
        "promote": "waiting",
        "change_priority": "prioritized",
        "change_delay": "delayed",
    }
    expected = {} if act == "remove" else {places.get(act, "waiting"): 1}
    assert await bullmq.counts() == expected
    if act == "log":
        assert (await bullmq.queue.get_job_logs(job_id)).count == 1


# --- list and stream queues -----------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Any, Any]] = {
    "list": (ListQueue, sync.ListQueue),
    "stream": (StreamQueue, sync.StreamQueue),
}


class Envelopes(Changed):
    """A list or stream queue."""

    async def bury(self, count: int) -> None:
        letters = (
            DeadLetter.from_envelope(Envelope.new("x", {"n": n}), "permanent_error", "it broke")
            for n in range(count)
        )
        with self.server.client() as client, client.pipeline() as pipe:
            for letter in letters:
                pipe.xadd(self.keys.dlq, {"envelope": letter.to_bytes()})
            pipe.execute()

    async def figures(self) -> tuple[int, int, int]:
        counts = await self.queue.counts()
        return counts.waiting, counts.scheduled, counts.dead


@pytest.fixture(params=list(itertools.product(KINDS, ["async", "blocking"])), ids="-".join)
async def envelope_queue(request: pytest.FixtureRequest, valkey: Server, proxy: Proxy, prefix: str) -> Any:
    kind, transport_kind = request.param
    make, make_blocking = KINDS[kind]
    async with make("jobs.paint", redis=valkey.url, prefix=prefix) as queue:
        if transport_kind == "async":
            async with make("jobs.paint", redis=proxy.url, prefix=prefix, policy=POLICY) as through:
                await through.counts()
                yield Envelopes(valkey, queue, through)
        else:
            blocking = make_blocking("jobs.paint", redis=proxy.url, prefix=prefix, policy=POLICY)
            await asyncio.to_thread(blocking.counts)
            yield Envelopes(valkey, queue, blocking)
            await asyncio.to_thread(blocking.close)


async def _purge(kind: Envelopes) -> Check:
    await kind.bury(600)

    async def check() -> None:
        assert await kind.do("purge", limit=350) == 350
        assert await kind.figures() == (0, 0, 250)

    return check


async def _replay(kind: Envelopes) -> Check:
    await kind.bury(600)

    async def check() -> None:
        assert await kind.do("replay", limit=350) == 350
        assert await kind.figures() == (350, 0, 250)
        assert (await kind.queue.totals())["replayed"] == 350

    return check


async def _drain_envelopes(kind: Envelopes) -> Check:
    await kind.queue.add_bulk([("x", {"n": n}) for n in range(1200)])
    await kind.queue.add_bulk([("x", {"n": n}) for n in range(100)], delay=60)

    async def check() -> None:
        assert await kind.do("drain", delayed=True) == 1300
        assert await kind.figures() == (0, 0, 0)

    return check


async def _promote_envelopes(kind: Envelopes) -> Check:
    await kind.queue.add_bulk([("x", {"n": n}) for n in range(1200)], delay=60)

    async def check() -> None:
        assert await kind.do("promote", limit=700) == 700

    return check


async def _remove_envelope(kind: Envelopes) -> Check:
    envelope = await kind.queue.add("x", {}, delay=60)
    await kind.bury(1)
    (letter,) = [one async for one in kind.queue.dead_letters()]

    async def check() -> None:
        assert await kind.do("remove", envelope.job_id) is True
        assert await kind.do("remove", letter.job_id) is True
        assert await kind.do("remove", letter.job_id) is False
        assert await kind.figures() == (0, 0, 0)

    return check


async def _obliterate_envelopes(kind: Envelopes) -> Check:
    await kind.queue.add_bulk([("x", {"n": n}) for n in range(10)])
    await kind.bury(2)
    await kind.queue.purge(limit=1)

    async def check() -> None:
        await kind.do("obliterate")
        with kind.server.client() as client:
            assert client.keys(f"{kind.keys.base}*") == []

    return check


ENVELOPES = {
    "purge": (_purge, 2),
    "replay": (_replay, 2),
    "drain": (_drain_envelopes, 1),
    "promote": (_promote_envelopes, 2),
    "remove": (_remove_envelope, 2),
    "obliterate": (_obliterate_envelopes, 1),
}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize(
    ("what", "after"), [(one, at) for one, (_, calls) in ENVELOPES.items() for at in range(calls)]
)
async def test_a_lost_reply_doubles_no_change_of_a_list_or_stream(
    envelope_queue: Envelopes, proxy: Proxy, what: str, after: int, fault: Kind
) -> None:
    check = await ENVELOPES[what][0](envelope_queue)
    armed = proxy.arm(fault, REMEMBERED, after=after)
    await check()
    assert armed.struck.is_set()


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_reply_lets_a_move_count_what_it_moved(
    valkey: Server, proxy: Proxy, prefix: str, kind: str, fault: Kind
) -> None:
    make = KINDS[kind][0]
    async with (
        ListQueue("jobs.from", redis=valkey.url, prefix=prefix) as source,
        make("jobs.to", redis=proxy.url, prefix=prefix, policy=POLICY) as target,
    ):
        await source.add_bulk([("x", {"n": n}) for n in range(250)])
        await source.add("x", {}, delay=60)
        await target.counts()
        armed = proxy.arm(fault, REMEMBERED, after=1)
        moved = await move_jobs(source, target)
        assert armed.struck.is_set()
        assert (moved.waiting, moved.scheduled, moved.known) == (250, 1, 0)
        counts = await target.counts()
        assert (counts.waiting, counts.scheduled) == (250, 1)
        assert (await source.counts()).pending == 0
