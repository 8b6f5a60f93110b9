"""Views over toril's tables for Spark's Declarative Pipelines. Change LAKE to where `toril pipeline` writes."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from toril.lake import Lake

LAKE = os.environ.get("TORIL_LAKE", "./lake")


def _table(name: str) -> DataFrame:
    spark = SparkSession.active()
    return spark.createDataFrame(Lake(LAKE).read(name).to_pandas())


@dp.materialized_view(comment="One row per attempt, as written by toril's pipeline")
def attempts() -> DataFrame:
    return _table("silver/attempts")


@dp.materialized_view(comment="Number of attempts by queue, job name and outcome")
def outcomes() -> DataFrame:
    return SparkSession.active().table("attempts").groupBy("queue", "name", "outcome").count()
