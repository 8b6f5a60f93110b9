"""Attempts as figures per queue and minute or hour.

Guarantee: counts sum up to the attempts given, and percentiles are exact (linear interpolation, as numpy's default).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from toril.lake import table_spec
from toril.spark.transforms.gold_sql import figures_sql


def queue_minute(attempts: DataFrame) -> DataFrame:
    """Rows of gold/queue_minute; a minute has the attempts that ended in it."""
    return _figures(attempts, "minute", 60)


def queue_hour(attempts: DataFrame) -> DataFrame:
    """Rows of gold/queue_hour."""
    return _figures(attempts, "hour", 3600)


def _figures(attempts: DataFrame, unit: str, seconds: int) -> DataFrame:
    columns = table_spec(f"gold/queue_{unit}").schema.names
    return attempts.sparkSession.sql(figures_sql(unit, seconds), attempts=attempts).select(*columns)
