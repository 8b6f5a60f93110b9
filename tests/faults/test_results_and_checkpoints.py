"""Results that go to another queue, and checkpoints, while workers are killed and replies are lost."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.faults.proxy import Kind, Proxy
from tests.faults.test_killed_workers import MakeFleet, ended, until_runs
from tests.faults.test_worker_replies import IMPATIENT, KINDS, all_done
from tests.servers import Server
from toril import Job, JobOptions, Queue, ResultsTo, Worker

pytestmark = pytest.mark.timeout(120)
TARGET = "stored"
JOBS = 300


async def stored(url: str, prefix: str) -> collections.Counter[int]:
    async with Queue(TARGET, redis=url, prefix=prefix) as target:
        jobs = await target.get_jobs(["waiting"], start=0, end=-1)
        return collections.Counter(job.data for job in jobs)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_is_added_once_though_replies_are_lost(
    under_attack: Queue, bad_network: Proxy, valkey_url: str, prefix: str, kind: Kind
) -> None:
    runs = 0

    async def handle(job: Job[Any]) -> int:
        nonlocal runs
        runs += 1
        if runs in (5, 15, 25):
            bad_network.arm(kind, b":wait", seconds=1.5)
        return int(job.data["i"])

    await under_attack.add_bulk([("n", {"i": i}) for i in range(40)])
    async with Worker(
        QUEUE, handle, redis=bad_network.url, policy=IMPATIENT, prefix=prefix, concurrency=4,
        max_stalled_count=10, drain_delay=0.5, lock_duration=1, stalled_check_interval=0.5,
        results_to=ResultsTo(TARGET, options=JobOptions(attempts=1)),
    ):  # fmt: skip
        await all_done(under_attack, 40)
    assert await stored(valkey_url, prefix) == collections.Counter(range(40))


async def test_a_result_is_added_once_though_workers_are_killed(
    valkey: Server, prefix: str, fleet: MakeFleet
) -> None:
    crew = fleet(valkey.url, results_to=TARGET, concurrency=10, max_stalled=100)
    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        await queue.add_bulk([("n", {"seconds": 0.02, "result": n}) for n in range(JOBS)])
        await asyncio.to_thread(crew.launch, 2)
        for number in range(1, 4):
            await until_runs(crew, valkey, number * JOBS // 5)
            await asyncio.to_thread(crew.kill, crew.crew[0])
            await asyncio.to_thread(crew.launch)
        await ended(queue, JOBS, 60)
        assert (await queue.get_job_counts()).completed == JOBS
    assert await stored(valkey.url, prefix) == collections.Counter(range(JOBS))


async def test_a_job_of_a_killed_worker_continues_behind_its_checkpoint(
    valkey: Server, prefix: str, fleet: MakeFleet
) -> None:
    steps, jobs = 400, 10
    crew = fleet(valkey.url, steps=True, concurrency=jobs, max_stalled=100)
    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        added = await queue.add_bulk([("n", {"steps": steps}) for _ in range(jobs)])
        kills = 3
        for number in range(1, kills + 1):
            await asyncio.to_thread(crew.launch)
            await until_runs(crew, valkey, number * jobs * steps // 6)
            await asyncio.to_thread(crew.kill, crew.crew[0])
        await asyncio.to_thread(crew.launch)
        await ended(queue, jobs, 60)
        assert [job.returnvalue for job in await queue.get_jobs(["completed"])] == [steps - 1] * jobs
    with valkey.client() as client:
        runs = crew.runs(client)
    # Each step ran, and a kill repeats no more than the one step of each job that was not stored yet.
    assert runs.keys() == {f"{job.id}/{step}" for job in added for step in range(steps)}
    assert sum(count - 1 for count in runs.values()) <= kills * jobs
