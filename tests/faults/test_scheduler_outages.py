"""Series of jobs under faults: the next run exists, none is doubled, and at most what was slept through is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.faults.proxy import FAULTS, Kind, Proxy
from tests.integration.manual_worker import ManualWorker
from tests.servers import Server
from tests.waiting import until
from toril import Job, Queue, Worker


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    with Proxy(valkey.port) as between:
        yield between


async def until_next(queue: Queue, last: str) -> str:
    """The id of the next job of the series, once it is there; there must be one at most."""
    while True:
        jobs = await queue.get_jobs(["delayed", "waiting", "prioritized"])
        ids = [job.id for job in jobs if job.id != last and job.name != "other"]
        assert len(ids) <= 1
        if ids:
            return ids[0]
        await asyncio.sleep(0.01)


async def test_a_worker_that_died_before_it_made_the_next_job_leaves_that_to_the_one_who_recovers_it(
    valkey_url: str, prefix: str
) -> None:
    runs: list[str] = []

    async def handle(job: Job) -> None:
        runs.append(job.id)

    async with Queue("reports", redis=valkey_url, prefix=prefix) as queue, asyncio.timeout(40):
        first = await queue.schedulers.upsert("hourly", every=3600)
        async with ManualWorker(valkey_url, queue.keys, lock_ms=200) as dead:
            assert (await dead.take()).id == first.id  # and nothing more is heard of it
        assert (await queue.get_job_counts()).delayed == 0
        async with Worker(
            "reports",
            handle,
            redis=valkey_url,
            prefix=prefix,
            lock_duration=1,
            heartbeat_interval=0.4,
            stalled_check_interval=0.5,
        ):
            await first.wait_until_finished()
            following = await until_next(queue, first.id)
    assert runs == [first.id]
    assert following != first.id


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_step_of_a_series_whose_call_was_broken_is_done_before_its_job_is_settled(
    proxy: Proxy, valkey: Server, prefix: str, kind: Kind
) -> None:
    async def handle(job: Job) -> str:
        return "done"

    async with (
        Queue("reports", redis=valkey.url, prefix=prefix) as queue,
        Worker("reports", handle, redis=proxy.url, prefix=prefix),
        asyncio.timeout(40),
    ):
        proxy.arm(kind, b":repeat")
        job = await queue.schedulers.upsert("hourly", every=3600)
        assert await job.wait_until_finished() == "done"
        await until_next(queue, job.id)
        found = await queue.schedulers.get("hourly")
    assert found is not None
    assert found.runs == 2  # the first and its successor, once


FULL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


async def test_a_series_goes_on_when_a_full_server_has_memory_again(
    proxy: Proxy, valkey: Server, prefix: str
) -> None:
    """The job itself ends meanwhile, and is not brought back by the step that follows it."""

    async def handle(job: Job) -> str:
        return "done"

    async with (
        Queue("reports", redis=valkey.url, prefix=prefix) as queue,
        Worker("reports", handle, redis=proxy.url, prefix=prefix),
        asyncio.timeout(40),
    ):
        refused = [proxy.arm("answer", b":repeat", reply=FULL) for _ in range(5)]
        first = await queue.schedulers.upsert("hourly", every=3600, options={"remove_on_complete": True})

        async def add_until_all_are_refused() -> bool:
            await queue.add("other", {})
            return all(one.struck.is_set() for one in refused)

        await until(add_until_all_are_refused, "five refusals", within=40)
        await queue.add("other", {})
        await until_next(queue, first.id)
        assert await queue.get_job(first.id) is None
        found = await queue.schedulers.get("hourly")
    assert found is not None
    assert found.runs == 2


async def test_a_series_survives_an_outage_over_several_ticks_without_doubles(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    runs: list[str] = []
    again = asyncio.Event()

    async def handle(job: Job) -> None:
        runs.append(job.id)
        if len(runs) >= 4:
            again.set()

    async with Queue("reports", redis=server.url, prefix=prefix) as queue, asyncio.timeout(50):
        await queue.schedulers.upsert("tick", every=0.3)
        async with Worker("reports", handle, redis=server.url, prefix=prefix, max_reconnect_delay=0.2):
            await until(lambda: len(runs) >= 2, "two jobs have run")
            server.stop()
            await asyncio.sleep(1.0)  # three ticks
            server.start()
            await again.wait()
    assert len(set(runs)) == len(runs)
    times = [int(run.rpartition(":")[2]) for run in runs]
    assert times == sorted(times)
