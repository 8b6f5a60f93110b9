"""Parquet files of a table, written and read by pyarrow where this runs: an executor, or the driver for small things.

Guarantee: a file is complete before its name is returned, and invisible until it is committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.lake.storage import file_system


def write_file(lake: Lake, name: str, table: pa.Table, partition: Mapping[str, str | None]) -> DataFile:
    """One Parquet file in the table's folder, from where this runs: an executor, or the driver for small things."""
    spec = table_spec(name)
    system, root = file_system(lake.location(name), lake.storage_options)
    folder = "/".join(f"{key}={value}" for key, value in partition.items())
    path = f"{folder}/{uuid.uuid4().hex}.parquet" if folder else f"{uuid.uuid4().hex}.parquet"
    columns = [field.name for field in spec.schema if field.name not in spec.partition_by]
    system.create_dir(f"{root}/{folder}" if folder else root, recursive=True)
    with system.open_output_stream(f"{root}/{path}") as sink:
        # Ids are all different: a dictionary of them would only cost time.
        pq.write_table(
            table.select(columns), sink, compression="zstd", use_dictionary=_dictionary_columns(columns)
        )
    size = system.get_file_info(f"{root}/{path}").size
    return DataFile(path=path, size=size, rows=table.num_rows, partition=dict(partition))


def write_parts(lake: Lake, name: str, table: pa.Table) -> list[DataFile]:
    """One file for each value of the column that the table is partitioned by; the rows need not be in order."""
    if not table_spec(name).partition_by:
        return [write_file(lake, name, table, {})]
    (column,) = table_spec(name).partition_by
    values = pc.unique(table[column]).to_pylist()
    parts = [table] if len(values) == 1 else [table.filter(pc.equal(table[column], one)) for one in values]
    return [
        write_file(lake, name, part, {column: str(value)}) for value, part in zip(values, parts, strict=True)
    ]


def read_columns(lake: Lake, name: str, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Some columns of one file."""
    system, root = file_system(lake.location(name), lake.storage_options)
    with system.open_input_file(f"{root}/{file.path}") as source:
        return pq.ParquetFile(source).read(columns=list(columns))


def _dictionary_columns(columns: Sequence[str]) -> list[str]:
    return [
        name
        for name in columns
        if name in ("queue", "event", "name", "prev", "state", "kind", "worker", "ts", "outcome", "source")
    ]
