"""Scores the jobs of a queue on Spark's executors, as a job for `spark-submit`.

spark-submit --master spark://master:7077 examples/score_job.py --redis redis://redis:6379 --queue inference
"""

from __future__ import annotations

import argparse
import signal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from toril.spark import SparkWorker


def score(batch: pa.Table) -> pa.Array:
    """Put your model here: it gets the columns of up to 500 jobs at once."""
    return pc.multiply(pc.struct_field(batch["data"], "x"), 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis")
    parser.add_argument("--prefix", default="bull")
    parser.add_argument("--queue", default="inference")
    parser.add_argument("--until-idle", action="store_true", help="end when no job is left")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("toril-work").getOrCreate()
    worker = SparkWorker(
        given.queue, score, spark=spark, redis=given.redis, prefix=given.prefix, data_schema="x double"
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    print(worker.run_once() if given.until_idle else worker.run())


if __name__ == "__main__":
    main()
