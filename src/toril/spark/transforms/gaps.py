"""Gap rows of the events as a table of their own.

Guarantee: one row for each gap; the sum of `lost` is the number of events that were not read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from toril.spark.transforms.gold_sql import GAPS


def gaps(events: DataFrame) -> DataFrame:
    """Rows of silver/gaps."""
    return events.sparkSession.sql(GAPS, events=events)
