"""The whole way of a job on a cluster, also while its slot moves."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.crc import key_slot

from tests.servers import ValkeyCluster
from tests.servers.slots import Mover
from toril import Backoff, Job, Queue, TransientError, Worker


async def test_jobs_are_added_worked_retried_and_delayed_on_a_cluster(cluster_url: str, prefix: str) -> None:
    async def handle(job: Job[Any]) -> int:
        await job.update_progress(10)
        await job.log("seen")
        if job.attempts_made == 0 and job.data["i"] % 5 == 0:
            raise TransientError("once")
        return int(job.data["i"])

    async with Queue("work", redis=cluster_url, prefix=prefix) as queue:
        kinds: list[dict[str, Any]] = [{}, {"priority": 3}, {"delay": 0.05}, {"lifo": True}]
        jobs = [
            await queue.add("n", {"i": i}, attempts=3, backoff=Backoff.fixed(0.01), **kinds[i % 4])
            for i in range(40)
        ]
        async with Worker("work", handle, redis=cluster_url, prefix=prefix, concurrency=7) as worker:
            results = [await job.wait_until_finished(timeout=20) for job in jobs]
            await worker.run_until_idle()
        assert results == list(range(40))
        assert queue.keys.base == f"{prefix}:{{work}}:"


async def test_a_slot_that_moves_while_workers_run_loses_nothing(cluster: ValkeyCluster, prefix: str) -> None:
    done: set[str] = set()

    async def handle(job: Job[Any]) -> None:
        done.add(job.id)
        await asyncio.sleep(0.002)

    async with Queue("work", redis=cluster.url, prefix=prefix) as queue:
        jobs = await queue.add_bulk([("n", {"i": i}) for i in range(400)])
        async with Worker(
            "work", handle, redis=cluster.url, prefix=prefix, concurrency=5, max_reconnect_delay=0.2
        ) as worker:
            await _move_slot_of(cluster, queue.keys.wait)
            more = await queue.add_bulk([("n", {"i": i}) for i in range(100)])
            await asyncio.wait_for(worker.run_until_idle(), 40)
        counts = await queue.get_job_counts()
    assert done == {job.id for job in [*jobs, *more]}
    assert counts.completed == 500


async def _move_slot_of(cluster: ValkeyCluster, key: str) -> None:
    mover = Mover(cluster)
    try:
        await mover.move_at_once(key_slot(key.encode()))
    finally:
        mover.close()
