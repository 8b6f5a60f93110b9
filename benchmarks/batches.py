"""Inserts jobs into a database: one by one, and with one statement per batch. `python -m benchmarks.batches`

Both ways run in one process, in turns, against the same server; each insert is its own transaction in a SQLite file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toril import Batch, Queue, Worker
from toril.server import EmbeddedServer
from toril.sync import Job

JOBS = 1000
ROUNDS = 3
INSERT = "INSERT INTO rows VALUES (?, ?)"


def single(database: Path) -> Callable[[Job[Any]], None]:
    def insert(job: Job[Any]) -> None:
        with sqlite3.connect(database, timeout=60) as connection:
            connection.execute(INSERT, (job.id, job.data["n"]))
        connection.close()

    return insert


def batched(database: Path) -> Callable[[list[Job[Any]]], None]:
    def insert(jobs: list[Job[Any]]) -> None:
        with sqlite3.connect(database, timeout=60) as connection:
            connection.executemany(INSERT, [(job.id, job.data["n"]) for job in jobs])
        connection.close()

    return insert


async def jobs_per_second(url: str, name: str, handler: Any, **options: Any) -> float:
    """Adds jobs, then runs them all."""
    async with Queue(name, redis=url) as queue:
        await queue.add_bulk([("insert", {"n": n}) for n in range(JOBS)])
        started = time.perf_counter()
        async with Worker(name, handler, redis=url, **options) as worker:
            await worker.run_until_idle()
        seconds = time.perf_counter() - started
        counts = await queue.get_job_counts()
        await queue.obliterate(force=True)
    if counts.completed != JOBS:
        raise RuntimeError(f"{counts.completed} of {JOBS} jobs completed")
    return JOBS / seconds


async def main() -> None:
    ratios = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder, port=None) as server:
        database = Path(folder) / "rows.db"
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, n INTEGER)")
        connection.close()
        for _ in range(ROUNDS):
            one = await jobs_per_second(server.url, "single", single(database), concurrency=10)
            many = await jobs_per_second(server.url, "batched", batched(database), batch=Batch(size=100))
            ratios.append(many / one)
            print(f"single {one:,.0f} jobs/s, batches of 100 {many:,.0f} jobs/s: {many / one:.1f} ×")
    print(f"median {statistics.median(ratios):.1f} ×")


if __name__ == "__main__":
    asyncio.run(main())
