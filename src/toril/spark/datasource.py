"""`format("toril")`: the one adapter between Spark's data source API and our readers and writers.

Guarantee: every problem with an option is said when the DataFrame is made, not in the middle of a job.
"""

from __future__ import annotations

from typing import Any

from toril.contract.errors import InvalidOption
from toril.contract.extras import needed

with needed("spark"):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from toril.spark.sinks._options import SinkOptions
    from toril.spark.sinks._types import check_types
    from toril.spark.sinks._writers import BatchWriter, StreamWriter
    from toril.spark.sources._options import SourceOptions
    from toril.spark.sources._reaching import reach
    from toril.spark.sources._readers import EventStreamReader, TableReader, source_schema


class TorilDataSource(DataSource):
    """Queues as tables, and DataFrames as jobs."""

    @classmethod
    def name(cls) -> str:
        return "toril"

    def _source_options(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options))

    def schema(self) -> StructType:
        schema: StructType = from_arrow_schema(source_schema(self._source_options()))
        return schema

    def reader(self, schema: StructType) -> Any:
        return TableReader(self._source_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return BatchWriter(self._sink_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return StreamWriter(self._sink_options(schema, overwrite=overwrite))

    def _sink_options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise InvalidOption("mode", "overwrite is not for queues", 'use mode("append")')
        options = SinkOptions.parse(dict(self.options))
        _check_columns(options, set(schema.names))
        check_types(schema)
        reach(options.url)
        return options

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 — Spark's name
        options = self._source_options()
        if options.table != "events":
            raise InvalidOption(
                "table",
                f"{options.table!r} cannot be streamed",
                'stream "events", read the others in batches',
            )
        return EventStreamReader(options, schema)


def _check_columns(options: SinkOptions, columns: set[str]) -> None:
    if options.queue is None and "queue" not in columns:
        raise InvalidOption("queue", "is missing", 'set option("queue", "emails"), or add a column "queue"')
    if options.op == "enqueue":
        if options.name is None and "name" not in columns:
            raise InvalidOption("name", "is missing", 'set option("name", "send"), or add a column "name"')
        return
    needed = "job_id" if options.kind == "bullmq" else "id"
    if needed not in columns:
        raise InvalidOption(needed, "is missing", f"op={options.op} needs the column {needed!r}")
