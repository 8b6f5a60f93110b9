"""A worker of batches in a process of its own, to be killed by tests: batch_process.py URL PREFIX QUEUE DATABASE."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Any

from toril import Batch, Worker
from toril.sync import Job


def main() -> None:
    url, prefix, queue, database = sys.argv[1:]

    def insert(jobs: list[Job[Any]]) -> list[int]:
        with sqlite3.connect(database, timeout=20) as connection:
            connection.executemany("INSERT OR IGNORE INTO rows VALUES (?)", [(job.id,) for job in jobs])
        print(len(jobs), flush=True)
        return [job.data["n"] for job in jobs]

    worker = Worker(
        queue,
        insert,
        redis=url,
        prefix=prefix,
        batch=Batch(size=20, wait=0.01),
        concurrency=2,
        lock_duration=1.0,
        stalled_check_interval=0.5,
        max_stalled_count=50,
    )
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
