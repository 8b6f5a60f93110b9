"""Alerts about workers. They are kept when the figures that raised them are replaced.

Guarantee: building gold anew changes none of them: gold/workers holds the last report of each worker, and an alert
raised by an earlier report exists only in the table of alerts.
"""

from __future__ import annotations

from datetime import date
from typing import Final

import pyarrow as pa

from toril.lake import Lake, table_spec
from toril.spark.pipeline.files.lineage import FIGURED
from toril.spark.pipeline.files.parquet_files import write_file

_ALERTS: Final = "gold/alerts"
_LASTING: Final = "select * from gold.alerts where subject <> '' or raised_at < cast($since as timestamptz)"


def alerts_of_workers(lake: Lake) -> pa.Table:
    return lake.query("select * from gold.alerts where subject <> ''")


def put_back(lake: Lake, alerts: pa.Table) -> None:
    if alerts.num_rows:
        log = lake.ensure(_ALERTS)
        file = write_file(lake, _ALERTS, alerts.cast(log.spec.schema), {})
        log.commit([file], application=FIGURED, version=log.version + 1)


def merged_alerts(lake: Lake, found: pa.Table, since: date) -> pa.Table:
    """New alerts, with the old ones that are about workers or from before a day; each once, and the new one first."""
    old = lake.query(_LASTING, {"since": since})
    rows = [*found.to_pylist(), *old.to_pylist()]
    once = {(row["rule"], row["queue"], row["subject"], row["raised_at"]): row for row in reversed(rows)}
    return pa.Table.from_pylist(list(once.values()), schema=table_spec(_ALERTS).schema)
