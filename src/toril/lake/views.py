"""Views of a lake for other programs: a DuckDB database, and a script for Spark SQL.

Guarantee: a view has the columns and rows that `Lake.query` shows. Those of DuckDB name the files that the tables have
now; they stay readable until these files are removed (`keep_files_hours`), and are written again for newer rows. Those
of Spark read the tables as they are at every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from toril.errors import LakeError, TableMissing
from toril.lake.lake import Lake, latest_rows
from toril.lake.tables import TABLES, TableSpec
from toril.protocol.extras import needed

_TYPES: Final = {
    pa.string(): "varchar",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}
LAYERS: Final = ("bronze", "silver", "gold")


def write_duckdb_views(lake: Lake, file: str | Path) -> list[str]:
    """Makes the views in a database of DuckDB, which is created if it is not there; returns their names."""
    with needed("lake"):
        import duckdb

    try:
        with duckdb.connect(str(file)) as database:
            for layer in LAYERS:
                database.execute(f"create schema if not exists {layer}")
            for spec in TABLES.values():
                database.execute(f"create or replace view {_name(spec)} as {_duckdb_rows(lake, spec)}")
    except duckdb.Error as error:
        raise LakeError(f"the views could not be written to {file}: {error}") from None
    return [_name(spec) for spec in TABLES.values()]


def spark_views(lake: Lake) -> Iterator[str]:
    """One statement for each table that exists: a temporary view through `format("toril")`, without a Delta jar."""
    for name in lake.tables():
        spec = TABLES[name]
        options = f"lake {_quoted(lake.url)}, table {_quoted(_name(spec))}"
        view = f"{spec.layer}_{spec.short_name}"
        yield f"create or replace temporary view {view} using toril options ({options});"


def _duckdb_rows(lake: Lake, spec: TableSpec) -> str:
    columns = ", ".join(f"null::{_TYPES[field.type]} as {field.name}" for field in spec.schema)
    names = ", ".join(spec.schema.names)
    nothing = f"select {columns} where false"  # a column that no file has is empty
    files = _files(lake, spec)
    if not files:
        return nothing
    listed = ", ".join(_quoted(one) for one in files)
    rows = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = true)"
    return latest_rows(spec, f"(select {names} from ({nothing} union all by name select * from {rows}))")


def _files(lake: Lake, spec: TableSpec) -> list[str]:
    try:
        files = lake.table(spec.name).files()
    except TableMissing:
        return []
    return [f"{lake.location(spec.name)}/{file.path}" for file in files]


def _name(spec: TableSpec) -> str:
    return f"{spec.layer}.{spec.short_name}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
