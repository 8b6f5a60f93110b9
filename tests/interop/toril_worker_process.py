"""A toril worker in a process of its own: `python -m tests.interop.toril_worker_process URL PREFIX QUEUE CONCURRENCY`.

It prints `ready`, then the id of each job that it starts, and `!` before the id when a run fails. It stops gracefully
when its input ends; killed, it leaves its jobs behind with locks that last one second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from tests.interop.workload import follow_instructions
from toril import Job, TorilError, Worker

NAME = "toril"


async def work(job: Job[Any]) -> Any:
    sys.stdout.write(f"{job.id}\n")
    try:
        return await follow_instructions(job)
    except TorilError:
        sys.stdout.write(f"!{job.id}\n")
        raise


async def main(url: str, prefix: str, queue: str, concurrency: str) -> None:
    logging.disable()  # Failures are asked for here; nobody reads about them.
    worker = Worker(
        queue,
        work,
        redis=url,
        prefix=prefix,
        concurrency=int(concurrency),
        worker_id=NAME,
        backoff_jitter=0.0,
        lock_duration=1.0,
        stalled_check_interval=1.0,
    )
    async with worker:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
