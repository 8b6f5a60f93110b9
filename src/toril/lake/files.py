"""Files of a table as one dataset of pyarrow.

Guarantee: rows have the columns and types of the table, those of its partitions included; a column that a file does not
have, because it was written before the table had it, is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyarrow import dataset as ds

from toril.lake.delta_table import DataFile
from toril.lake.lake import Lake
from toril.lake.storage import file_system
from toril.lake.tables import table_spec


def files_dataset(lake: Lake, name: str, files: Sequence[DataFile]) -> Any:
    """Some files of a table; an empty table when there are none."""
    schema = table_spec(name).schema
    if not files:
        return schema.empty_table()
    system, root = file_system(lake.location(name), lake.storage_options)
    parquet = ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(f"{root}/{file.path}", system, _partition(file.partition, schema))
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, system)


def _partition(values: Mapping[str, str | None], schema: pa.Schema) -> Any:
    found = [_equals(name, value, schema.field(name).type) for name, value in values.items()]
    return reduce(lambda one, other: one & other, found) if found else None


def _equals(name: str, value: str | None, kind: pa.DataType) -> Any:
    return ds.field(name).is_null() if value is None else ds.field(name) == pa.scalar(value).cast(kind)
