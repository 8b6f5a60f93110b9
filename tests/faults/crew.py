"""A worker in a process of its own, there to be killed: python -m tests.faults.crew JSON.

Says "ready" when it takes jobs, writes down each run in Redis when it begins, and does what the job's data says:
`seconds` of work, `fail` so many times, `die` by this signal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

import redis.asyncio

from tests.faults.fleet import runs_key
from toril import Job, TransientError, Worker


def handler(record: redis.asyncio.Redis, key: str) -> Any:
    async def handle(job: Job[Any]) -> int:
        await record.rpush(key, job.id)
        data = job.data
        if "die" in data:
            os.kill(os.getpid(), data["die"])
        await asyncio.sleep(data.get("seconds", 0))
        if job.attempts_made < data.get("fail", 0):
            raise TransientError("not yet")
        return job.attempts_made

    return handle


async def live(words: dict[str, Any]) -> None:
    record = redis.asyncio.Redis.from_url(words["record"] if "record" in words else words["url"])
    worker = Worker(
        words["queue"],
        handler(record, runs_key(words["prefix"])),
        redis=words["url"],
        prefix=words["prefix"],
        lock_duration=words.get("lock", 1.0),
        stalled_check_interval=words.get("sweep", words.get("lock", 1.0)),
        concurrency=words.get("concurrency", 5),
        max_stalled_count=words.get("max_stalled", 1),
        shutdown_timeout=words.get("patience", 30.0),
    )
    worker.on("ready", lambda: print("ready", flush=True))
    try:
        await worker.run()
    finally:
        await record.aclose()


def main() -> None:
    words = json.loads(sys.argv[1])
    if "log" in words:
        logging.basicConfig(filename=words["log"], format="%(asctime)s %(message)s")
    asyncio.run(live(words))


if __name__ == "__main__":
    main()
