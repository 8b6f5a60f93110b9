"""Servers that change their places: a primary that is replaced, slots that move to other nodes while calls run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import (
    PATIENT,
    TransportAdapter,
    add_to,
    echo,
    get,
    put,
    raw_request,
)
from tests.servers import Server, ValkeyCluster, ValkeySentinel
from tests.servers.slots import Mover
from toril.commands import read
from toril.commands.add import JobToAdd, add_jobs
from toril.commands.command import Command, Replay, call
from toril.commands.library import Script
from toril.commands.worker import Pickup, Settlement, finish_options, settle
from toril.errors import ReplyLost
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

_BOTH = Script("test.both", "redis.call('INCR', KEYS[1]); return redis.call('INCR', KEYS[2])")


def add_to_both(one: str, other: str) -> Command[int]:
    """Two keys of one slot: while it moves, the server may have only one of them and says TRYAGAIN."""
    return call(_BOTH, (one, other), [], int, Replay.NEVER)


@pytest.fixture
def sentinel() -> Iterator[ValkeySentinel]:
    """One of its own for each test, as its primary dies."""
    with ValkeySentinel() as found:
        yield found


async def primary_dies(sentinel: ValkeySentinel) -> None:
    before = sentinel.primary_port()
    sentinel.primary.kill()
    while await asyncio.to_thread(sentinel.primary_port) == before:
        await asyncio.sleep(0.02)


class TestAFailOver:
    async def test_is_followed(self, sentinel: ValkeySentinel, open_transport: OpenStore) -> None:
        transport = open_transport(sentinel.url, PATIENT)
        await transport.run_many([put("a", "1"), raw_request("WAIT", 1, 4000)])
        assert await port_of(transport) == sentinel.primary.port
        await primary_dies(sentinel)
        await transport.run(put("b", "2"))
        assert await port_of(transport) == sentinel.replica.port
        assert await transport.run(get("a")) == b"1"

    async def test_under_load_loses_replies_at_most(
        self, sentinel: ValkeySentinel, open_transport: OpenStore
    ) -> None:
        transport = open_transport(sentinel.url, PATIENT)
        over = asyncio.Event()

        async def load(name: int) -> list[Any]:
            outcomes: list[Any] = []
            while not over.is_set():
                calls = transport.run(add_to(f"count:{name}")), transport.run(echo("a", "x"))
                outcomes += await asyncio.gather(*calls, return_exceptions=True)
            return outcomes

        loads = [asyncio.create_task(load(name)) for name in range(4)]
        await primary_dies(sentinel)
        await transport.run(put("after", "1"))
        over.set()
        outcomes = [outcome for found in await asyncio.gather(*loads) for outcome in found]
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(type(outcome) is ReplyLost for outcome in failed), failed
        assert len(failed) <= 4  # One call of each, in flight when the primary died.

    async def test_takes_a_blocked_reader_along(self, sentinel: ValkeySentinel) -> None:
        async with AsyncTransport(sentinel.url, policy=PATIENT) as transport, transport.reader() as reader:
            pop: Command[Any] = raw_request("BLPOP", "list", 20)
            call = asyncio.create_task(reader.run(pop, 20))
            await transport.connect()
            await primary_dies(sentinel)
            await transport.run(raw_request("RPUSH", "list", "a"))
            assert await asyncio.wait_for(call, 20) == [b"list", b"a"]


async def port_of(transport: TransportAdapter) -> int:
    reply = await transport.run(raw_request("CONFIG", "GET", "port"))
    return int(reply[1])


@pytest.fixture(scope="module")
def moving_cluster() -> Iterator[ValkeyCluster]:
    """A cluster for the tests of this file: where its slots are changes all the time."""
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture
def mover(moving_cluster: ValkeyCluster) -> Iterator[Mover]:
    found = Mover(moving_cluster)
    yield found
    for client in found.clients:
        client.flushall()
    found.close()


def refusals(nodes: list[Server]) -> dict[str, int]:
    """How often each word was said by the servers."""
    counts: dict[str, int] = {}
    for node in nodes:
        with node.client() as client:
            for name, found in client.info("errorstats").items():
                word = name.removeprefix("errorstat_")
                counts[word] = counts.get(word, 0) + int(found["count"])
    return counts


class TestResharding:
    async def test_costs_no_call_and_runs_none_twice(
        self, moving_cluster: ValkeyCluster, mover: Mover, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(moving_cluster.url, PATIENT)
        tags = [f"{prefix}:{{{n}}}" for n in range(3)]
        before = refusals(moving_cluster.nodes)
        await transport.run_many([put(f"{tag}:filler:{n}", "x") for tag in tags for n in range(30)])
        over = asyncio.Event()

        async def load(tag: str, name: int) -> int:
            count = 0
            while not over.is_set():
                await transport.run(add_to(f"{tag}:{name}"))
                await transport.run(add_to_both(f"{tag}:{name}", f"{tag}:{name}:other"))
                replies = await transport.run_many([add_to(f"{tag}:{name}"), echo(tag, "x")])
                assert [type(reply) for reply in replies] == [int, bytes], replies
                count += 3
            return count

        loads = {(tag, name): asyncio.create_task(load(tag, name)) for tag in tags for name in range(2)}
        for tag in tags:
            for _ in range(2):
                await mover.move(key_slot(tag.encode()))
        over.set()
        for (tag, name), task in loads.items():
            count = await task
            assert await transport.run(get(f"{tag}:{name}")) == str(count).encode()
            assert await transport.run(get(f"{tag}:{name}:other")) == str(count // 3).encode()
        said = refusals(moving_cluster.nodes)
        met = {word for word in ("MOVED", "ASK", "TRYAGAIN") if said.get(word, 0) > before.get(word, 0)}
        assert met == {"MOVED", "ASK", "TRYAGAIN"}

    async def test_at_once_loses_and_doubles_no_job(
        self, moving_cluster: ValkeyCluster, mover: Mover, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(moving_cluster.url, PATIENT)
        keys = QueueKeys("paint", prefix, hash_tag=True)
        over = asyncio.Event()
        added: list[str] = []
        done: list[str] = []

        async def produce() -> None:
            while not over.is_set():
                ids = [f"j{len(added) + n}" for n in range(5)]
                jobs = [JobToAdd(name="n", data=b"{}", options={}, timestamp=1, id=one) for one in ids]
                assert await transport.run(add_jobs(keys, jobs)) == ids
                added.extend(ids)

        async def work() -> None:
            held: list[str] = []
            pickup = Pickup(token="t", lock_ms=60_000)
            options = finish_options(pickup=pickup, token="t", keep={"count": -1}, attempts=1)
            while not (producing.done() and len(done) == len(added)):
                outcomes = [
                    Settlement(job_id=one, kind="completed", token="t", value="1", options=options)
                    for one in held
                ]
                reply = await transport.run(settle(keys, outcomes, capacity=10, pickup=pickup, now_ms=2))
                assert reply.ack_errors == [None] * len(held)
                done.extend(held)
                held = [job_id for job_id, _ in reply.jobs]

        producing = asyncio.create_task(produce())
        working = asyncio.create_task(work())
        for _ in range(3):
            await mover.move_at_once(key_slot(keys.wait.encode()))
        over.set()
        await asyncio.wait_for(asyncio.gather(producing, working), 30)
        assert sorted(done) == sorted(added)
        assert (await transport.run(read.get_counts(keys)))["completed"] == len(added) > 0


async def test_a_node_that_restarts_is_waited_for(
    moving_cluster: ValkeyCluster, mover: Mover, prefix: str, open_transport: OpenStore
) -> None:
    transport = open_transport(moving_cluster.url, PATIENT)
    await transport.run_many([put(f"{prefix}:{n}", "x") for n in range(20)])
    node = moving_cluster.nodes[1]
    mover.clients[1].close()
    node.kill()
    calls = asyncio.create_task(transport.run_many([echo(f"{prefix}:{n}", str(n)) for n in range(20)]))
    await asyncio.sleep(0)
    node.start()
    assert await calls == [str(n).encode() for n in range(20)]
    assert isinstance(mover.clients[1], redis.Redis)
