"""Spark sources, sinks, transforms and the pipeline.

Guarantee: importing this needs no Spark. `register` and the packages below need it; without it their error names the
extra.

    toril.spark.register(spark)
    spark.read.format("toril").option("url", "redis://…").option("table", "jobs").option("queues", "emails").load()
    spark.readStream.format("toril").option("table", "events").load()
    df.write.format("toril").option("queue", "emails").mode("append").save()
    toril.spark.enqueue(df, "emails", run="welcome-2026-03")     # each row once, however df is partitioned
    toril.spark.SparkWorker("inference", score, spark=spark).run_once()     # jobs processed on the executors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from toril.spark.worker.spark_worker import SparkWorker

__all__ = ["SparkWorker", "enqueue", "register"]


def __getattr__(name: str) -> Any:
    """Imports the worker when it is used: readers and writers on executors need none of it."""
    if name != "SparkWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from toril.spark.worker.spark_worker import SparkWorker

    return SparkWorker


def register(spark: SparkSession) -> None:
    """Registers `format("toril")` in a session, together with the server that the driver has chosen.

    Needed where Spark's own discovery does not find the format, and for streams that name no server.
    """
    from toril.spark.datasource import source_for
    from toril.spark.python import as_portable, use_driver_python
    from toril.spark.sources.server_choice import Driver

    use_driver_python(spark)
    register_once(spark, as_portable(source_for(Driver.of(spark))))


def enqueue(
    df: DataFrame,
    queue: str | None = None,
    *,
    run: str | None = None,
    key: str | Sequence[str] | None = None,
    **options: str | float | bool | None,
) -> None:
    """Adds the rows of `df` as jobs, each once under `run`, however `df` is partitioned.

    `key` names columns (or parts of structs, `data.id`) that identify a row. Without it rows are shuffled by a hash of
    their content, so that equal rows are counted over all partitions; a column that differs each time it is computed,
    such as `rand()` or `current_timestamp()`, needs `key`. `options` are those of `df.write.format("toril")`.
    """
    from toril.protocol.extras import needed

    with needed("spark"):
        from toril.spark.sinks.enqueue import enqueue_rows

    enqueue_rows(df, queue, run, key, **options)


def register_once(spark: SparkSession, source: type) -> None:
    """Registers a data source unless a session on the same context already did."""
    from pyspark.errors import PySparkException

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
