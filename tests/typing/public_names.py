"""What the type checker knows about the public names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from toril import Backoff, Job, JobCounts, JobOptions, Queue, Worker


async def add_and_wait(queue: Queue[Any]) -> None:
    job = await queue.add("send", {"to": "a@b.c"}, attempts=5, backoff=Backoff.exponential(1.0), delay=2.0)
    assert_type(job, Job[Any])
    assert_type(await queue.get_job_counts(), JobCounts)


async def handle(job: Job[Any]) -> Mapping[str, bool]:
    await job.update_progress(50)
    await job.log("half way")
    return {"ok": True}


async def work() -> None:
    async with Worker("emails", handle, concurrency=50) as worker:
        await worker.run_until_idle()


def options() -> JobOptions:
    return JobOptions(lifo=True)
