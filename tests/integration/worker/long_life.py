"""Works through 1,000 and then 99,000 more jobs and says after each how big the process is: URL PREFIX."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from toril import Job, Queue, Worker

QUEUE = "long"
ADDED_AT_ONCE = 1000


async def handle(_: Job[Any]) -> None: ...


def size(done: int) -> str:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return json.dumps(
        {
            "done": done,
            "memory": pages * os.sysconf("SC_PAGE_SIZE"),
            "threads": threading.active_count(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "tasks": len(asyncio.all_tasks()),
        }
    )


async def work(url: str, prefix: str, count: int) -> None:
    async with Queue(QUEUE, redis=url, prefix=prefix) as queue:
        for _ in range(count // ADDED_AT_ONCE):
            await queue.add_bulk([("n", {"i": i}) for i in range(ADDED_AT_ONCE)])
        async with Worker(QUEUE, handle, redis=url, prefix=prefix, concurrency=100) as worker:
            await worker.run_until_idle()
        counts = await queue.get_job_counts()
        assert counts.completed == count, counts
        await queue.pause()
        await queue.obliterate(force=True)


async def main() -> None:
    url, prefix = sys.argv[1:]
    await work(url, prefix, 1_000)
    print(size(1_000))
    await work(url, prefix, 99_000)
    print(size(100_000))


if __name__ == "__main__":
    asyncio.run(main())
