"""A worker of its own process, to be killed: `python -m tests.spark.work_worker ENGINE MASTER URL PREFIX`.

`loop` and `rows` are the engines of `SparkWorker`, `plain` is a `Worker`. Every handler doubles `n`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
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


def double(batch: pa.Table) -> list[int]:
    time.sleep(0.2)  # so that kills meet batches
    return [2 * row["n"] for row in batch["data"].to_pylist()]


def double_rows(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("queue", "job_id", "token", "position", "data.n * 2 as result")


async def double_job(job: Any) -> int:
    await asyncio.sleep(0.05)  # leaves jobs for the others
    return 2 * int(job.data["n"])


def main(engine: str, master: str, url: str, prefix: str) -> None:
    if engine == "plain":
        # A job may be caught by several kills.
        options: Any = {"concurrency": 20, "lock_duration": LOCK, "stalled_check_interval": LOCK}
        asyncio.run(
            Worker(QUEUE, double_job, redis=url, prefix=prefix, max_stalled_count=20, **options).run()
        )
        return
    handler = double if engine == "loop" else double_rows
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
