"""Adds a job to a queue, and processes it with a worker.

Usually these are two programs: one adds, the other works. Both find the same server: the embedded one in ./.toril, or
the one that TORIL_REDIS_URL names.
"""

from __future__ import annotations

import asyncio

from toril import Job, Queue, Worker


async def send(job: Job) -> str:
    return f"sent to {job.data['to']}"


async def main() -> None:
    async with Queue("emails") as queue:
        job = await queue.add("send", {"to": "ada@example.org"})
        async with Worker("emails", send, concurrency=10):
            print(await job.wait_until_finished(timeout=10))
        counts = await queue.get_job_counts()
        print(counts.completed, "completed,", counts.waiting, "waiting")


asyncio.run(main())

# prints:
# sent to ada@example.org
# 1 completed, 0 waiting
