"""A driver that names no server, in a process and a directory of its own.

`python -m tests.spark.serverless_child MASTER` adds a job by the library, uses every way to the queues that Spark has,
and prints what each gave, or why it was refused, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.child import SETTINGS
from toril import sync
from toril.errors import InvalidOption
from toril.spark import register
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.session import build_session

Step = Callable[[], Any]


def said(step: Step) -> Any:
    """What a step gives, or the reason for which it is refused, out of Spark's many words."""
    from pyspark.errors import PySparkException

    try:
        return step()
    except (InvalidOption, PySparkException) as error:
        lines = f"{error} {error.__cause__ or ''}".splitlines()
        return next((line.partition("url: ")[2] for line in lines if "url: " in line), str(error)[-500:])


def main(master: str) -> None:
    with sync.Queue("emails") as queue:
        queue.add("by the library")
    spark = build_session(master, memory="512m", spark_log=True, **SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    toril: dict[str, str] = {"table": "jobs"}

    def read() -> int:
        return spark.read.format("toril").options(**toril).load().count()

    def stream() -> int:
        events = spark.readStream.format("toril").load().where("event = 'added'")
        query = events.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
        query.option("checkpointLocation", str(Path("checkpoint").absolute())).start().awaitTermination()
        return spark.table("seen").count()

    def write() -> None:
        rows = spark.range(3).selectExpr("'by Spark' as name", "named_struct('n', id) as data")
        rows.write.format("toril").option("queue", "emails").mode("append").save()

    found = {
        "discovered read": said(read),
        "discovered write": said(write),
        "discovered stream": said(stream),
    }
    register(spark)
    os.chdir("elsewhere")  # what was chosen stays chosen
    found |= {"write": said(write), "read": said(read), "stream": said(stream)}
    pipeline = Pipeline(PipelineOptions(lake="lake", snapshots="none"), spark=spark)
    found["pipeline"] = said(lambda: pipeline.run_once().events)
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
