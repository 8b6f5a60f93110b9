"""Errors of attempts, grouped by their pattern.

Guarantee: two messages that differ only in numbers, ids, addresses, quoted parts or the class of the error before them
have one fingerprint.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# In this order: what is longer and more special comes first.
_PATTERNS: Final = (
    # `Error: text`, `TypeError [ERR_INVALID_URL]: text`, `package.module.TransientError: text`: whoever stores the text
    # says the class of the error with it, or not. What a KeyError says is nothing without.
    (r"^(?:(?!KeyError:)(?:[A-Za-z_$][\w$.]*)?(?:Error|Exception)(?: \[\w+\])?:\s+)+", ""),
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"\b[a-z][a-z0-9+.-]*://\S+", "<url>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b[0-9a-f]{12,}\b", "<hex>"),
    (r"\"[^\"]*\"|'[^']*'|`[^`]*`", "<text>"),
    (r"\d+(\.\d+)?", "<n>"),
    (r"\s+", " "),
)
_LONGEST: Final = 300  # what distinguishes two errors stands at the beginning


def with_fingerprint(attempts: DataFrame) -> DataFrame:
    """Attempts that have an error, with `pattern` and `fingerprint`."""
    pattern = F.substring(F.substring_index("error", "\n", 1), 1, 4 * _LONGEST)
    for expression, placeholder in _PATTERNS:
        pattern = F.regexp_replace(pattern, expression, placeholder)
    named = attempts.where(F.col("error").isNotNull()).withColumn(
        "pattern", F.substring(F.trim(pattern), 1, _LONGEST)
    )
    return named.withColumn("fingerprint", F.substring(F.sha2("pattern", 256), 1, 16))


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
