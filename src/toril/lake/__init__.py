"""The lake: which tables there are, what is in them, and how to read them without Spark.

Guarantee: a table is read only by a toril that knows its schema; a newer one is refused with a remedy.

    lake = Lake("./lake")
    lake.query("select queue, sum(completed) from gold.queue_minute group by queue")   # a pyarrow.Table
    lake.read("silver/attempts", columns=["queue", "run_ms"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toril.errors import CommitGone, LakeError, LakeTooNew, TableMissing, TableRolledBack
from toril.protocol.extras import needed, require

if TYPE_CHECKING:
    from toril.lake.lake import Lake
    from toril.lake.report import write_report
    from toril.lake.tables import TABLES, TableSpec, table_spec

require("lake", "pyarrow", "deltalake")
_MODULE_OF: Final = {
    "TABLES": "tables",
    "Lake": "lake",
    "TableSpec": "tables",
    "table_spec": "tables",
    "write_report": "report",
}

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


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: whoever reads logs only does not need pyarrow."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed("lake"):
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    return globals().setdefault(name, getattr(module, name))
