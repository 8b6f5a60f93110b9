"""Servers at their limits: out of memory, or with more stalled jobs than anybody wants to see."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.servers import Server
from tests.waiting import until
from toril import Job, Queue, Worker
from toril.errors import RedisOutOfMemory
from toril.protocol.keys import QueueKeys
from toril.worker import WorkerState

pytestmark = pytest.mark.timeout(120)


async def test_a_full_server_refuses_new_work_and_lets_running_work_end(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    begun: list[str] = []
    release = asyncio.Event()
    errors: list[BaseException] = []

    async def handle(job: Job[Any]) -> str:
        begun.append(job.id)
        await release.wait()
        return "done"

    with server.client() as client:
        async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
            jobs = await queue.add_bulk([("n", {"i": i}) for i in range(6)])
            worker = Worker(
                QUEUE,
                handle,
                redis=server.url,
                prefix=prefix,
                concurrency=3,
                lock_duration=1,
                stalled_check_interval=0.5,
            )
            worker.on("error", errors.append)
            async with worker:
                await until(lambda: len(begun) == 3, "three jobs are active")
                client.config_set("maxmemory", "1mb")
                with pytest.raises(RedisOutOfMemory, match="maxmemory"):
                    await queue.add("n", {"more": "x" * 1000})
                renewer = worker._lifecycle.runtime.lock_renewer  # type: ignore[union-attr]
                enough = renewer.renewed + 3 * 6  # six heartbeats for three jobs: more than two locks
                await until(lambda: renewer.renewed >= enough, "heartbeats get through")
                release.set()
                await until(lambda: worker.processed >= 3, "the active jobs are done")
                await until(
                    lambda: any(isinstance(one, RedisOutOfMemory) for one in errors), "the worker says why"
                )
                assert worker.state is WorkerState.RUNNING
                client.config_set("maxmemory", "0")
                freed = time.monotonic()
                later = await queue.add("n", {})
                await until(lambda: worker.processed == 7, "all jobs are done")
                assert await later.get_state() == "completed"
                assert time.monotonic() - freed < 10  # about one second after there is memory again
            told = collections.Counter(fields[b"event"] for _, fields in client.xrange(queue.keys.events))
            assert told[b"stalled"] == 0
            assert [await job.get_state() for job in jobs] == ["completed"] * 6
            assert len(errors) <= 24, "one line for each pause, not for each try"


async def test_fifty_thousand_stalled_jobs_come_back_while_others_are_served(
    valkey: Server, prefix: str
) -> None:
    count = 50_000
    keys = QueueKeys(QUEUE, prefix, hash_tag=False)
    with valkey.client() as client:
        for start in range(0, count, 5000):
            pipe = client.pipeline(transaction=False)
            for i in range(start, start + 5000):
                pipe.hset(
                    keys.job(f"j{i}"),
                    mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": 1, "ats": 1},
                )
            pipe.lpush(keys.active, *(f"j{i}" for i in range(start, start + 5000)))
            pipe.execute()
        latencies: list[float] = []
        over = asyncio.Event()

        async def bystander() -> None:
            while not over.is_set():
                asked = time.perf_counter()
                await asyncio.to_thread(client.ping)
                latencies.append(time.perf_counter() - asked)

        worker = Worker(
            QUEUE,
            lambda job: None,
            redis=valkey.url,
            prefix=prefix,
            lock_duration=1,
            stalled_check_interval=0.5,
        )
        back: list[str] = []
        worker.on("stalled", back.extend)
        await worker.pause()
        watching = asyncio.create_task(bystander())
        async with worker:
            await until(lambda: len(back) >= count, "all jobs are back", within=90)
        over.set()
        await watching
        assert client.llen(keys.wait) == count == len(set(back))
        assert client.llen(keys.active) == 0
    latencies.sort()
    print(f"p50 {latencies[len(latencies) // 2]:.4f} s, p99 {latencies[len(latencies) * 99 // 100]:.4f} s")


async def test_a_huge_clean_is_done_in_parts(valkey: Server, prefix: str) -> None:
    count = 20_000
    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        with valkey.client() as client:
            pipe = client.pipeline(transaction=False)
            for i in range(count):
                pipe.hset(
                    queue.keys.job(f"j{i}"), mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": 1}
                )
                pipe.zadd(queue.keys.completed, {f"j{i}": 1})
            pipe.execute()
            slowest: Any = 0.0
            over = asyncio.Event()

            async def bystander() -> None:
                nonlocal slowest
                while not over.is_set():
                    asked = time.perf_counter()
                    await asyncio.to_thread(client.ping)
                    slowest = max(slowest, time.perf_counter() - asked)

            watching = asyncio.create_task(bystander())
            removed = await queue.clean(0)
            over.set()
            await watching
            print(f"a bystander waited {slowest:.3f} s at most")
            assert (client.zcard(queue.keys.completed), len(removed)) == (0, count)
