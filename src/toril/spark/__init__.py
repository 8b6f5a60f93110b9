"""Spark sources, sinks, transforms and the pipeline.

Guarantee: importing this needs no Spark; `register` and the rooms below do, and say so when it is missing.

    toril.spark.register(spark)
    spark.read.format("toril").option("url", "redis://…").option("table", "jobs").option("queues", "emails").load()
    spark.readStream.format("toril").option("table", "events").load()
    df.write.format("toril").option("queue", "emails").mode("append").save()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes `format("toril")` known to a session, and its driver's choice of a server known to the format.

    For where Spark's own discovery does not look, and for streams that name no server.
    """
    from toril.spark.datasource import source_for
    from toril.spark.sources._reaching import Driver

    register_once(spark, source_for(Driver.of(spark)))


def register_once(spark: SparkSession, source: type) -> None:
    """Registers a data source unless a session on the same context already did."""
    from pyspark.errors import PySparkException

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
