"""A worker in a process of its own, there to be killed: python -m tests.faults.worker_program JSON.

Says "ready" when it takes jobs, writes down each run in Redis when it begins, and does what the job's data says:
`seconds` of work, `first` so many in the first run only, `block` the loop so long, `compute` in the loop so long,
`fail` so many times, `result` what it returns, `die` by this signal, `tell` when it began by the server's clock.
With the option `steps`, the handler is a generator: it writes down each of the `steps` of the job and yields it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio

from tests.faults.worker_processes import runs_key
from toril import Job, TransientError, Worker


def handler(record: redis.asyncio.Redis, key: str) -> Any:
    async def handle(job: Job[Any]) -> object:
        began = await record.time()
        await record.rpush(key, job.id)
        data = job.data
        if "tell" in data:
            await record.hset(f"{key}:began", job.id, began[0] * 1000 + began[1] // 1000)
        if "die" in data:
            os.kill(os.getpid(), data["die"])
        if "block" in data:
            time.sleep(data["block"])
        if "compute" in data:
            compute(data["compute"])
        await asyncio.sleep(data.get("first", 0) if job.stalled_count == 0 else 0)
        await asyncio.sleep(data.get("seconds", 0))
        if job.attempts_made < data.get("fail", 0):
            raise TransientError("not yet")
        return data.get("result", job.attempts_made)

    return handle


def steps_handler(record: redis.asyncio.Redis, key: str) -> Any:
    async def walk(job: Job[Any]) -> AsyncIterator[int]:
        for step in range(0 if job.checkpoint is None else job.checkpoint + 1, job.data["steps"]):
            await record.rpush(key, f"{job.id}/{step}")
            yield step

    return walk


def compute(seconds: float) -> None:
    """Keeps the processor and the event loop busy."""
    end, number = time.monotonic() + seconds, 1
    while time.monotonic() < end:
        number = number * 1103515245 % 2147483647


async def live(words: dict[str, Any]) -> None:
    record = redis.asyncio.Redis.from_url(words["record"] if "record" in words else words["url"])
    worker = Worker(
        words["queue"],
        (steps_handler if words.get("steps") else handler)(record, runs_key(words["prefix"])),
        redis=words["url"],
        prefix=words["prefix"],
        lock_duration=words.get("lock", 1.0),
        stalled_check_interval=words.get("sweep", words.get("lock", 1.0)),
        concurrency=words.get("concurrency", 5),
        max_stalled_count=words.get("max_stalled", 1),
        shutdown_timeout=words.get("patience", 30.0),
        results_to=words.get("results_to"),
    )
    worker.on("ready", lambda: print("ready", flush=True))
    try:
        await worker.run()
    finally:
        await record.aclose()


def mistake_the_time(by: float) -> None:
    """For this process, it is so many seconds later than it is."""
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + by
    time.time_ns = lambda: true_time_ns() + int(by * 1e9)


def main() -> None:
    if "CLOCK_SKEW" in os.environ:
        mistake_the_time(float(os.environ["CLOCK_SKEW"]))
    words = json.loads(sys.argv[1])
    if "log" in words:
        logging.basicConfig(filename=words["log"], format="%(asctime)s %(message)s")
    asyncio.run(live(words))


if __name__ == "__main__":
    main()
