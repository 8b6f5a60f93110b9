"""Replies that are lost after the server has done its work, on every kind of queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.conformance.cutter import Cutter
from tests.conformance.kinds import KINDS
from tests.servers import Server
from tests.waiting import until, until_equal
from toril import TransientError

JOBS = 200
EVERY = 15  # runs of handlers from one cut to the next

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.name)
async def test_no_job_is_lost_or_left_over_when_a_workers_replies_are(
    make: Any, valkey: Server, prefix: str
) -> None:
    runs: Counter[int] = Counter()
    async with Cutter(valkey.port) as cutter, make(valkey.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            n = kind.payload(job)["n"]
            runs[n] += 1
            if runs.total() % EVERY == 0:
                cutter.arm()
            if n % 10 == 0 and runs[n] == 1:
                raise TransientError("the first attempt fails")

        await kind.add_many([{"n": n} for n in range(JOBS)], attempts=20)
        through = make(cutter.url, prefix)
        worker = through.worker(handle, concurrency=5, max_stalled_count=100, reconnect_delay=0.01)
        async with worker:
            await until_equal(kind.unfinished, 0, within=90)
        assert cutter.cuts > 5
        assert await kind.failed_jobs() == []
        if kind.at_least_once:
            assert runs.keys() == set(range(JOBS))
        else:
            # What a lost reply had popped is gone, and that is all: at most a batch for each cut, and nothing twice.
            assert len(runs) >= JOBS - 5 * cutter.cuts
            assert all(count <= (2 if n % 10 == 0 else 1) for n, count in runs.items())


@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.name)
async def test_no_job_is_added_twice_when_a_producers_replies_are_lost(
    make: Any, valkey: Server, prefix: str
) -> None:
    async with Cutter(valkey.port) as cutter, make(cutter.url, prefix).opened() as through:
        await through.add("task", {"n": 0})
        for n in range(1, 30):
            if n % 3 == 0:
                cutter.arm()
            await through.add("task", {"n": n})
        assert cutter.cuts == 9
        await asyncio.gather(*(through.add("task", {"n": n}) for n in range(30, 60)))
    async with make(valkey.url, prefix).opened() as kind:
        assert await kind.unfinished() == 60


@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.name)
async def test_a_worker_goes_on_when_the_server_forgets_all_scripts(
    make: Any, valkey: Server, prefix: str
) -> None:
    runs: Counter[int] = Counter()
    async with make(valkey.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            runs[kind.payload(job)["n"]] += 1
            if runs.total() % 10 == 0:
                with valkey.client() as client:
                    client.script_flush()

        await kind.add_many([{"n": n} for n in range(100)])
        async with asyncio.timeout(30), kind.worker(handle, concurrency=5) as worker:
            await worker.run_until_idle()
    assert runs == Counter(range(100))


@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.name)
async def test_a_worker_comes_back_after_the_server_was_away(
    make: Any, start_valkey: Any, prefix: str
) -> None:
    server: Server = start_valkey(appendonly="yes", appendfsync="always")
    runs: Counter[int] = Counter()
    half, away = asyncio.Event(), asyncio.Event()

    async with make(server.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            runs[kind.payload(job)["n"]] += 1
            if len(runs) >= 50:
                half.set()
                await away.wait()

        await kind.add_many([{"n": n} for n in range(100)], attempts=10)
        worker = kind.worker(handle, concurrency=5, max_stalled_count=100, reconnect_delay=0.01)
        async with asyncio.timeout(60), worker:
            await half.wait()
            server.kill()
            away.set()
            server.start()
            await until_equal(kind.unfinished, 0, within=60)
        assert await kind.failed_jobs() == []
    if kind.at_least_once:
        assert runs.keys() == set(range(100))


@pytest.mark.parametrize("make", KINDS, ids=lambda kind: kind.name)
async def test_active_jobs_finish_when_the_server_has_no_memory_left(
    make: Any, start_valkey: Any, prefix: str
) -> None:
    server: Server = start_valkey(maxmemory_policy="noeviction")
    runs: Counter[int] = Counter()
    begun, full = asyncio.Event(), asyncio.Event()
    async with make(server.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            runs[kind.payload(job)["n"]] += 1
            begun.set()
            await full.wait()

        await kind.add_many([{"n": n} for n in range(10)])
        async with asyncio.timeout(60), kind.worker(handle, concurrency=5) as worker:
            await begun.wait()
            with server.client() as client:
                client.config_set("maxmemory", 1)
                full.set()
                loop = worker._lifecycle._runtime.fetch_loop
                await until(lambda: not (loop.running or loop.settling), "the active jobs are settled")
                client.config_set("maxmemory", 0)
            await until_equal(kind.unfinished, 0)
        assert await kind.failed_jobs() == []
    assert runs == Counter(range(10))
