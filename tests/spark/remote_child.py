"""A client of a Spark Connect server, which needs a Python process of its own.

`python -m tests.spark.remote_child sc://… URL PREFIX LAKE` writes, reads and streams what is in the queue `emails`,
processes the jobs of the queue `scores` with both engines, runs the pipeline, and prints what it saw as one line of
JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame

from toril import sync
from toril.spark import SparkWorker, register
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.session import build_session


def double(batch: Any) -> list[int]:
    return [2 * row["x"] for row in batch["data"].to_pylist()]


def double_rows(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("queue", "job_id", "token", "position", "data.x * 2 as result")


def work(spark: Any, url: str, prefix: str) -> list[list[int]]:
    """The results of both engines."""
    found = []
    with sync.Queue("scores", redis=url, prefix=prefix) as queue:
        for takes, handler in (("arrow", double), ("dataframe", double_rows)):
            jobs = queue.add_bulk([("score", {"x": n}) for n in range(20)])
            options: dict[str, Any] = {"takes": takes, "data_schema": "x bigint"}
            SparkWorker("scores", handler, spark=spark, redis=url, prefix=prefix, **options).run_once()
            found.append([one.wait_until_finished(timeout=5) for one in jobs])
        queue.obliterate(force=True)
    return found


def main(server: str, url: str, prefix: str, lake: str) -> None:
    spark = build_session(server)
    register(spark)
    place = {"url": url, "prefix": prefix}
    rows = spark.range(0, 50, 1, 2).selectExpr("'send' as name", "named_struct('n', id) as data")
    for _ in range(2):
        rows.write.format("toril").options(**place, queue="written", run="once").mode("append").save()
    jobs = spark.read.format("toril").options(**place, table="jobs").load()
    counts = {row.queue: row["count"] for row in jobs.groupBy("queue").count().collect()}
    failed = jobs.where("queue = 'emails' and state = 'failed'").select("queue", "job_id")
    failed.write.format("toril").options(**place, op="retry").mode("append").save()
    events = spark.readStream.format("toril").options(**place, queues="emails").load()
    echo = events.selectExpr("event as name", "job_id as of").writeStream.format("toril")
    options = {**place, "queue": "echo", "checkpointLocation": f"{lake}-checkpoint"}
    echo.options(**options).trigger(availableNow=True).start().awaitTermination()
    summary = Pipeline(PipelineOptions(redis=url, prefix=prefix, lake=lake), spark=spark).run_once()
    results = work(spark, url, prefix)
    print(json.dumps({"counts": counts, "events": summary.events, "results": results}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
