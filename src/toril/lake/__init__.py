"""The lake: which tables there are, what is in them, and how to read them without Spark.

Guarantee: a table is read only by a toril that knows its schema; a newer one is refused with a remedy.

    lake = Lake("./lake")
    lake.query("select queue, sum(completed) from gold.queue_minute group by queue")   # a pyarrow.Table
    lake.read("silver/attempts", columns=["queue", "run_ms"])
"""

from __future__ import annotations

from toril.errors import CommitGone, LakeError, LakeTooNew, TableMissing, TableRolledBack
from toril.protocol.extras import needed

with needed("lake"):
    from toril.lake.lake import Lake
    from toril.lake.report import write_report
    from toril.lake.tables import TABLES, TableSpec, table_spec

__all__ = [
    "TABLES",
    "CommitGone",
    "Lake",
    "LakeError",
    "LakeTooNew",
    "TableMissing",
    "TableRolledBack",
    "TableSpec",
    "table_spec",
    "write_report",
]
