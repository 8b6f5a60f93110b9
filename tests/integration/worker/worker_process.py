"""A worker in a process of its own, to be killed by tests: worker_process.py URL PREFIX QUEUE [lock seconds]."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from toril import Job, Worker


async def handle(job: Job[Any]) -> str:
    await asyncio.sleep(job.data.get("seconds", 0))
    return "done"


def main() -> None:
    url, prefix, queue, *rest = sys.argv[1:]
    lock = float(rest[0]) if rest else 30.0
    worker = Worker(
        queue,
        handle,
        redis=url,
        prefix=prefix,
        lock_duration=lock,
        stalled_check_interval=lock,
        concurrency=5,
    )
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
