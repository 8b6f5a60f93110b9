"""Errors of attempts, grouped by their pattern.

Guarantee: two messages that differ only in numbers, ids, addresses, quoted parts or the class of the error before them
have one fingerprint.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from toril.protocol.error_pattern import FINGERPRINT_DIGITS, LONGEST, PATTERNS, READ
from toril.spark.transforms.gold_sql import ERRORS


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
    return attempts.sparkSession.sql(ERRORS, attempts=with_fingerprint(attempts))
