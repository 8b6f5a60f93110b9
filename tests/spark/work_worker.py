"""A worker of its own process, to be killed: `python -m tests.spark.work_worker ENGINE MASTER URL PREFIX RUNS`.

`loop` and `rows` are the engines of `SparkWorker`, `plain` is a `Worker`. Every handler doubles `n`, and appends `n`
and the time at which it ran to a file of its process in the folder RUNS.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.spark.child import SETTINGS
from toril import Worker
from toril.spark import SparkWorker
from toril.spark.pipeline.session import build_session

QUEUE = "shared"
# Short, so that jobs of killed processes are recovered within seconds.
LOCK = 8.0


def note(runs: str, engine: str, numbers: Iterable[int]) -> None:
    """Records that the handler runs for these jobs; a killed process leaves what it wrote."""
    lines = "".join(f"{number} {time.time():.3f}\n" for number in numbers)
    with Path(runs, f"{engine}-{os.getpid()}").open("a", encoding="ascii") as file:
        file.write(lines)


def double(batch: pa.Table, runs: str) -> list[int]:
    numbers = [row["n"] for row in batch["data"].to_pylist()]
    note(runs, "loop", numbers)
    time.sleep(0.2)  # so that kills meet batches
    return [2 * one for one in numbers]


def double_rows(rows: DataFrame, runs: str) -> DataFrame:
    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            note(runs, "rows", [row["n"] for row in batch.column("data").to_pylist()])
            yield batch

    taken = rows.mapInArrow(noted, rows.schema)
    return taken.selectExpr("queue", "job_id", "token", "position", "data.n * 2 as result")


async def double_job(job: Any, runs: str) -> int:
    number = int(job.data["n"])
    note(runs, "plain", [number])
    await asyncio.sleep(0.05)  # leaves jobs for the others
    return 2 * number


def main(engine: str, master: str, url: str, prefix: str, runs: str) -> None:
    if engine == "plain":
        # A job may be caught by several kills.
        options: Any = {"concurrency": 8, "lock_duration": LOCK, "stalled_check_interval": LOCK}
        single = functools.partial(double_job, runs=runs)
        asyncio.run(Worker(QUEUE, single, redis=url, prefix=prefix, max_stalled_count=20, **options).run())
        return
    handler: Any = functools.partial(double if engine == "loop" else double_rows, runs=runs)
    settings = {**SETTINGS, "spark.cores.max": "1", "spark.task.maxFailures": "4"}
    worker = SparkWorker(
        QUEUE,
        handler,
        spark=build_session(master, memory="512m", spark_log=False, **settings),
        redis=url,
        prefix=prefix,
        takes="arrow" if engine == "loop" else "dataframe",
        data_schema="n bigint",
        tasks=1,
        max_jobs=200 if engine == "loop" else 1000,
        slice=10.0,
        max_restarts=100,
        lock_duration=LOCK,
        max_stalled_count=20,
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
