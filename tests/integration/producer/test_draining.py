"""Removing what waits from queues of any size, on every kind of server, while others use them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.servers import Server, ValkeyCluster, ValkeySentinel
from toril import ListQueue, Queue, StreamQueue, Worker, sync

MANY = 10_000


async def fill(queue: Any, count: int, **options: Any) -> None:
    for start in range(0, count, 5000):
        await queue.add_bulk([("x", {"n": n}, options) for n in range(start, min(count, start + 5000))])


async def scripts_of(server: Server, act: Awaitable[Any]) -> tuple[Any, int, float]:
    """What an act returns, how many scripts it called, and how long (ms) the server took for each of them."""
    with server.client() as client:
        client.config_resetstat()
        answer = await act
        figures = client.info("commandstats")["cmdstat_evalsha"]
    return answer, figures["calls"], figures["usec_per_call"] / 1000


@pytest.mark.parametrize(
    "options", [{}, {"priority": 3}, {"delay": 60}], ids=["wait", "prioritized", "delayed"]
)
async def test_no_call_of_a_drain_holds_the_server_for_long(
    start_valkey: Callable[..., Server], options: dict[str, Any]
) -> None:
    server = start_valkey()
    async with Queue("emails", redis=server.url) as queue:
        await queue.drain()  # the script is known now
        await fill(queue, MANY, **options)
        removed, calls, milliseconds = await scripts_of(server, queue.drain(delayed=True))
        assert removed == MANY
        assert calls >= MANY / 500
        assert milliseconds < 100
        assert (await queue.get_job_counts()).total == 0


@pytest.mark.parametrize(("make", "calls_needed"), [(ListQueue, 1), (StreamQueue, MANY / 500)])
async def test_no_call_of_a_drain_of_a_list_or_stream_holds_the_server_for_long(
    start_valkey: Callable[..., Server], make: Any, calls_needed: float
) -> None:
    server = start_valkey()
    async with make("jobs.emails", redis=server.url) as queue:
        await queue.drain(delayed=True)
        await queue.add_bulk([("x", {"n": n}) for n in range(MANY)])
        await queue.add_bulk([("x", {"n": n}) for n in range(MANY)], delay=60)
        removed, calls, milliseconds = await scripts_of(server, queue.drain(delayed=True))
        assert removed == 2 * MANY
        assert calls >= calls_needed
        assert milliseconds < 100
        assert await queue.pending() == 0


async def test_large_entries_of_a_stream_are_drained_a_few_at_a_time(valkey: Server, prefix: str) -> None:
    async with StreamQueue("jobs.emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add_bulk([("x", {"text": "a" * 1_000_000}) for _ in range(20)])
        with valkey.client() as client:
            before = client.info("commandstats")["cmdstat_xdel"]["calls"] if _known(client, "xdel") else 0
            assert await queue.drain() == 20
            assert client.info("commandstats")["cmdstat_xdel"]["calls"] - before >= 4


def _known(client: Any, command: str) -> bool:
    return f"cmdstat_{command}" in client.info("commandstats")


KILLED = """
import asyncio, sys
from toril import Queue
from toril.producer import _management

_management.REMOVE_BATCH = 5

async def main():
    async with Queue("emails", redis=sys.argv[1], prefix=sys.argv[2]) as queue:
        await queue.drain(delayed=True)

asyncio.run(main())
"""


async def test_what_a_killed_drain_has_left_runs(valkey: Server, prefix: str) -> None:
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await fill(queue, 5000)
        child = subprocess.Popen([sys.executable, "-c", KILLED, valkey.url, prefix])
        try:
            while (await queue.get_job_counts()).waiting == 5000:
                await asyncio.sleep(0)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        left = await queue.get_waiting()
        assert 0 < len(left) < 5000
        seen: set[str] = set()
        async with Worker(
            "emails", lambda job: seen.add(job.id), redis=valkey.url, prefix=prefix, concurrency=50
        ) as worker:
            await worker.run_until_idle()
        assert seen == {job.id for job in left}
        with valkey.client() as client:
            for key in client.keys(f"{queue.keys.base}toril:*"):
                assert client.pttl(key) > 0, key


async def test_a_scheduler_goes_on_after_a_drain(server_url: str, prefix: str) -> None:
    ticks = asyncio.Semaphore(0)

    async def handle(_: Any) -> None:
        ticks.release()

    async with Queue("emails", redis=server_url, prefix=prefix) as queue:
        await queue.add("before")
        await queue.schedulers.upsert("tick", every=0.2)  # its first run is due at once
        await queue.promote_jobs()
        await queue.add("behind")
        assert await queue.drain(delayed=True) == 2
        assert (await queue.get_job_counts()).ready == 1
        async with asyncio.timeout(20), Worker("emails", handle, redis=server_url, prefix=prefix):
            for _ in range(3):
                await ticks.acquire()
        await queue.schedulers.remove("tick")


async def test_a_large_clean_is_not_stopped_by_the_next_run_of_a_scheduler(
    server_url: str, prefix: str
) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix) as queue:
        await queue.add("first")
        await queue.schedulers.upsert("tick", every=3600)
        await queue.promote_jobs()
        await fill(queue, 2500)
        assert len(await queue.clean(0, state="waiting")) == 2501
        (left,) = await queue.get_waiting()
        assert left.id.startswith("repeat:tick:")


async def test_queues_of_a_cluster_are_drained(cluster: ValkeyCluster, prefix: str) -> None:
    async with Queue("emails", redis=cluster.url, prefix=prefix) as queue:
        await fill(queue, 1200)
        await queue.add("x", delay=60)
        await queue.schedulers.upsert("tick", every=3600)
        assert await queue.drain(delayed=True) == 1201
        assert (await queue.get_job_counts()).total == 1
    for make in (ListQueue, StreamQueue):
        async with make("jobs.emails", redis=cluster.url, prefix=prefix) as other:
            await other.add_bulk([("x", {})] * 600)
            await other.add("x", {}, delay=60)
            assert await other.drain(delayed=True) == 601
            await other.obliterate()


async def test_queues_under_a_sentinel_are_drained(sentinel: ValkeySentinel, prefix: str) -> None:
    async with Queue("emails", redis=sentinel.url, prefix=prefix) as queue:
        await fill(queue, 1200)
        assert await queue.drain() == 1200


def test_the_blocking_queue_returns_how_many_jobs_it_drained(valkey_url: str, prefix: str) -> None:
    with sync.Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        queue.add_bulk([("x", n) for n in range(7)])
        queue.add("x", delay=60)
        assert queue.promote_jobs(limit=5) == 1
        assert queue.drain() == 8
