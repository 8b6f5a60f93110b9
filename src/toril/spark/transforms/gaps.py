"""Gap rows of the events as a table of their own.

Guarantee: one row for each gap; the sum of `lost` is the number of events that were not read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from toril.lake.tables import GAP_EVENT


def gaps(events: DataFrame) -> DataFrame:
    """Rows of silver/gaps."""
    found = events.where(F.col("event") == GAP_EVENT)
    return found.select(
        "queue",
        "ts",
        F.col("id").alias("from_id"),
        F.get_json_object("extra", "$.until").alias("until_id"),
        "lost",
        F.get_json_object("extra", "$.reason").alias("reason"),
    )
