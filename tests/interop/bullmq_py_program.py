"""bullmq-py in a process of its own, run by the Python that has it: `bullmq_py_program.py TASK URL PREFIX QUEUE COUNT`.

add   adds COUNT jobs of several kinds and prints their ids
work  processes jobs until COUNT have ended, and prints the id of each
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bullmq import Queue, Worker


async def add(url: str, prefix: str, name: str, count: int) -> None:
    queue = Queue(name, {"connection": url, "prefix": prefix})
    kinds: list[dict[str, Any]] = [
        {},
        {"priority": 3},
        {"delay": 100},
        {"attempts": 3, "backoff": {"type": "fixed", "delay": 10}},
        {"lifo": True},
    ]
    for number in range(count):
        job = await queue.add("job", {"n": number, "fail_times": number % 5 == 3}, kinds[number % len(kinds)])
        print(job.id, flush=True)
    await queue.close()


async def work(url: str, prefix: str, name: str, count: int) -> None:
    ended = asyncio.Semaphore(0)

    async def handle(job: Any, _token: str) -> dict[str, Any]:
        if job.attemptsMade < job.data.get("fail_times", 0):
            raise ValueError("asked to fail")
        print(job.id, flush=True)
        return {"n": job.data["n"]}

    worker = Worker(name, handle, {"connection": url, "prefix": prefix})
    worker.on("completed", lambda *_: ended.release())
    for _ in range(count):
        await ended.acquire()
    await worker.close()


if __name__ == "__main__":
    task, url, prefix, name, count = sys.argv[1:]
    asyncio.run({"add": add, "work": work}[task](url, prefix, name, int(count)))
