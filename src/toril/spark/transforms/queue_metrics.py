"""Attempts as figures per queue and minute or hour.

Guarantee: counts sum up to the attempts given, and percentiles are exact (linear interpolation, as numpy's default).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_OUTCOMES: Final = ("completed", "failed", "retried", "stalled", "suspended")
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def queue_minute(attempts: DataFrame) -> DataFrame:
    """Rows of gold/queue_minute; a minute has the attempts that ended in it."""
    return _figures(attempts, "minute", 60)


def queue_hour(attempts: DataFrame) -> DataFrame:
    """Rows of gold/queue_hour."""
    return _figures(attempts, "hour", 3600)


def _figures(attempts: DataFrame, unit: str, seconds: int) -> DataFrame:
    counted = attempts.groupBy("queue", F.date_trunc(unit, "ended_at").alias(unit)).agg(
        *(F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in _OUTCOMES),
        F.count(F.lit(1)).alias("attempts"),
        _percentiles("wait_ms").alias("wait"),
        _percentiles("run_ms").alias("run"),
        F.sum("run_ms").alias("run_sum_ms"),
    )
    return counted.select(
        "queue",
        unit,
        *_OUTCOMES,
        "attempts",
        (F.col("completed") / F.lit(float(seconds))).alias("throughput"),
        _rate("failed").alias("failure_rate"),
        _rate("retried").alias("retry_rate"),
        _rate("stalled").alias("stall_rate"),
        *(
            F.col(what)[index].alias(f"{what}_{name}_ms")
            for what in ("wait", "run")
            for index, name in enumerate(_PERCENTILES)
        ),
        "run_sum_ms",
        F.to_date(unit).alias("day"),
    )


def _percentiles(column: str) -> Column:
    return F.percentile(column, list(_PERCENTILES.values()))


def _rate(outcome: str) -> Column:
    return F.col(outcome) / F.col("attempts")
