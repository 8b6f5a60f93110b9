"""Alerts about workers. They are kept when the figures that raised them are replaced.

Guarantee: building gold anew changes none of them: gold/workers holds the last report of each worker, and an alert
raised by an earlier report exists only in the table of alerts.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from toril.lake import Lake
from toril.spark.pipeline.files.lineage import FIGURED
from toril.spark.pipeline.files.parquet import write_file

_ALERTS: Final = "gold/alerts"


def alerts_of_workers(lake: Lake) -> pa.Table:
    return lake.query("select * from gold.alerts where subject <> ''")


def put_back(lake: Lake, alerts: pa.Table) -> None:
    if alerts.num_rows:
        log = lake.ensure(_ALERTS)
        file = write_file(lake, _ALERTS, alerts.cast(log.spec.schema), {})
        log.commit([file], application=FIGURED, version=log.version + 1)
