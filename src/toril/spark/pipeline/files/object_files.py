"""Files of a lake on object storage: read and written by tasks through pyarrow, not through Spark's file systems.

Guarantee: such a lake needs no jar and no setting of Spark, only its `storage_options`, which are the same for every
reader; rows and files are those that Spark itself would read and write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.lake.storage import file_system
from toril.spark.pipeline.files.manifest import Manifest, files_in
from toril.spark.pipeline.files.parquet_files import write_parts

_FILES: Final = "path string, partition string"
_LINES: Final = "line string"
_TASKS: Final = 32  # that read at once; storage answers many, and each costs a start
_ROWS: Final = 50_000  # of one batch on its way to Spark


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads the files that its rows name; runs on executors."""

    lake: Lake
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, root = file_system(self.lake.location(self.name), self.lake.storage_options)
        for batch in batches:
            for row in batch.to_pylist():
                with system.open_input_file(f"{root}/{row['path']}") as source:
                    yield from self._rows(pq.ParquetFile(source), json.loads(row["partition"]))

    def _rows(self, file: pq.ParquetFile, partition: dict[str, object]) -> Iterator[pa.RecordBatch]:
        schema = table_spec(self.name).schema
        for batch in file.iter_batches(_ROWS):
            columns = [self._column(batch, field, partition) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, batch: pa.RecordBatch, field: pa.Field, partition: dict[str, object]) -> pa.Array:
        if field.name in partition:
            return pa.repeat(pa.scalar(partition[field.name], pa.string()), batch.num_rows).cast(field.type)
        if field.name not in batch.schema.names:  # written before the table had it
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(field.name).cast(field.type)


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes its rows as files of a table and returns their names; runs on executors."""

    lake: Lake
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch for batch in batches if batch.num_rows]
        if held:
            table = pa.Table.from_batches(held).cast(table_spec(self.name).schema)
            line = Manifest({self.name: write_parts(self.lake, self.name, table)}).to_json()
            yield pa.RecordBatch.from_pydict({"line": [line]})


def read_files(spark: SparkSession, lake: Lake, name: str, files: Sequence[DataFile]) -> DataFrame:
    """Files of a table as a DataFrame."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = [(file.path, json.dumps(dict(file.partition))) for file in files]
    named = spark.createDataFrame(rows, _FILES).repartition(min(len(rows), _TASKS))
    return named.mapInArrow(FileReader(lake, name), from_arrow_schema(table_spec(name).schema))


def write_rows(frame: DataFrame, lake: Lake, name: str) -> list[DataFile]:
    """Writes rows as files of a table. They are invisible until they are committed."""
    rows = frame.select(*table_spec(name).schema.names).mapInArrow(FileWriter(lake, name), _LINES).collect()
    return files_in(row.line for row in rows)[name]
