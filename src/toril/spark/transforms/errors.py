"""Errors of attempts, grouped by their pattern.

Guarantee: two messages that differ only in numbers, ids, addresses, quoted parts or the class of the error before them
have one fingerprint.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from toril.protocol.error_pattern import FINGERPRINT_DIGITS, LONGEST, PATTERNS, READ


def with_fingerprint(attempts: DataFrame) -> DataFrame:
    """Attempts that have an error, with `pattern` and `fingerprint`."""
    pattern = F.substring(F.substring_index("error", "\n", 1), 1, READ)
    for expression, placeholder in PATTERNS:
        pattern = F.regexp_replace(pattern, expression, placeholder)
    named = attempts.where(F.col("error").isNotNull()).withColumn(
        "pattern", F.substring(F.trim(pattern), 1, LONGEST)
    )
    return named.withColumn("fingerprint", F.substring(F.sha2("pattern", 256), 1, FINGERPRINT_DIGITS))


def errors(attempts: DataFrame) -> DataFrame:
    """Rows of gold/errors: one per queue, job name, fingerprint and day."""
    return (
        with_fingerprint(attempts)
        .groupBy("queue", "fingerprint", "pattern", "name", "day")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.countDistinct("job_id").alias("jobs"),
            F.min("ended_at").alias("first_at"),
            F.max("ended_at").alias("last_at"),
            F.max(F.struct("ended_at", "job_id", "attempt", "error")).alias("last"),
        )
        .select(
            "queue",
            "fingerprint",
            "pattern",
            "name",
            "count",
            "jobs",
            "first_at",
            "last_at",
            F.substring("last.error", 1, 4000).alias("sample"),
            F.col("last.job_id").alias("sample_job_id"),
            "day",
        )
    )
