"""Files of a table: written by Spark's executors, counted and described by the driver, ready to be committed.

Guarantee: a file that is written and not committed is invisible to every reader and is removed by `maintain`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.lake.storage import file_system, for_spark, is_local
from toril.spark.pipeline.files.object_files import read_files, write_rows

_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


def stage(frame: DataFrame, lake: Lake, name: str) -> list[DataFile]:
    """Writes `frame` beside the table's files; the result is what to commit."""
    if not is_local(lake.url):
        return write_rows(frame, lake, name)
    spec = table_spec(name)
    folder = f"batch-{uuid.uuid4().hex}"
    writer = frame.select(*spec.schema.names).write.mode("error")
    if spec.partition_by:
        writer = writer.partitionBy(*spec.partition_by)
    writer.parquet(f"{for_spark(lake.location(name))}/{folder}")
    return _described(lake, name, folder)


def _described(lake: Lake, name: str, folder: str) -> list[DataFile]:
    system, root = file_system(lake.location(name), lake.storage_options)
    found = system.get_file_info(fs.FileSelector(f"{root}/{folder}", recursive=True))
    files = [one for one in found if one.is_file and one.base_name.endswith(".parquet")]
    described = [_describe(system, root, one) for one in files]
    return [one for one in described if one.rows]


def _describe(system: Any, root: str, info: Any) -> DataFile:
    path = info.path.removeprefix(root).lstrip("/")
    with system.open_input_file(info.path) as source:
        rows = pq.ParquetFile(source).metadata.num_rows
    return DataFile(path=path, size=info.size, rows=rows, partition=_partition(path))


def _partition(path: str) -> dict[str, str | None]:
    pairs = (folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder)
    return {name: None if value == _NULL_FOLDER else unquote(value) for name, _, value in pairs}


def frame_of(spark: SparkSession, lake: Lake, name: str, files: Sequence[DataFile]) -> DataFrame:
    """Files of a table as a DataFrame, partition columns included."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(table_spec(name).schema)
    if not files:
        return spark.createDataFrame([], schema)
    if not is_local(lake.url):
        return read_files(spark, lake, name, files)
    root = for_spark(lake.location(name))
    by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in files:
        by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(f"{root}/{file.path}")
    parts = [key for group in by_partition for key, _ in group]
    inner = type(schema)([field for field in schema.fields if field.name not in parts])
    frames = []
    for group, paths in by_partition.items():
        frame = spark.read.schema(inner).parquet(*paths)
        for key, value in group:
            frame = frame.withColumn(key, F.lit(value).cast(schema[key].dataType))
        frames.append(frame.select(*schema.names))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def read_table(spark: SparkSession, lake: Lake, name: str, **partition: str) -> DataFrame:
    """A whole table, or one of its partitions, as a DataFrame."""
    return frame_of(spark, lake, name, lake.ensure(name).files(**partition))
