"""Runs the pipeline as a job for `spark-submit`, in the session of the cluster.

spark-submit --master spark://master:7077 examples/pipeline_job.py --redis redis://redis:6379 --lake /shared/lake
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from toril.spark.pipeline import Pipeline, PipelineOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis")
    parser.add_argument("--queues", default="*")
    parser.add_argument("--prefix", default="bull")
    parser.add_argument(
        "--tasks", type=int, default=2, help="number of tasks that read Redis at the same time"
    )
    parser.add_argument("--lake", default="./lake")
    parser.add_argument(
        "--forever", action="store_true", help="follow the queues instead of reading them once"
    )
    given = parser.parse_args()
    spark = SparkSession.builder.appName("toril-pipeline").getOrCreate()
    options = PipelineOptions(
        redis=given.redis, queues=given.queues, prefix=given.prefix, lake=given.lake, tasks=given.tasks
    )
    pipeline = Pipeline(options, spark=spark)
    if given.forever:
        pipeline.up(on_progress=print)
    else:
        print(pipeline.run_once())


if __name__ == "__main__":
    main()
