"""`format("toril")`: the one adapter between Spark's data source API and our readers and writers.

Guarantee: every invalid option is refused when the DataFrame is made, not in the middle of a job.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import Any

from toril.errors import InvalidOption
from toril.protocol.extras import needed

with needed("spark"):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from toril.spark.sinks.column_types import check_types
    from toril.spark.sinks.columns import check_columns
    from toril.spark.sinks.identity import CONTENT_COLUMN
    from toril.spark.sinks.options import SinkOptions
    from toril.spark.sinks.writers import BatchWriter, StreamWriter
    from toril.spark.sources.lake_reader import LakeOptions, LakeReader
    from toril.spark.sources.options import SourceOptions
    from toril.spark.sources.readers import EventStreamReader, TableReader, source_schema
    from toril.spark.sources.server_choice import Driver, check_reachable, choose


class TorilDataSource(DataSource):
    """Queues as tables, and DataFrames as jobs."""

    driver: Driver | None = None  # None: Spark found this class by itself, and nobody told us who runs it

    @classmethod
    def name(cls) -> str:
        return "toril"

    def schema(self) -> StructType:
        if self._is_of_lake:
            return from_arrow_schema(LakeOptions.parse(dict(self.options)).schema)
        if self._is_work:
            schema_of_work: StructType = self._work.schema(dict(self.options), self.driver)
            return schema_of_work
        options = SourceOptions.parse(dict(self.options))
        if self.driver is not None:
            self.driver.url_for(options.url)  # refused when the DataFrame is made, not when it is used
        schema: StructType = from_arrow_schema(source_schema(options))
        return schema

    @property
    def _is_work(self) -> bool:
        """Whether jobs are taken as rows."""
        return self.options.get("table", self.options.get("path")) == "work"

    @property
    def _is_settle(self) -> bool:
        return self.options.get("op") == "settle"

    @property
    def _work(self) -> ModuleType:
        """Imported when it is used: it loads worker code, which other readers and writers do not need."""
        return importlib.import_module("toril.spark.worker.data_source")

    def _source_options(self, *, streams: bool = False) -> SourceOptions:
        options = SourceOptions.parse(dict(self.options))
        choice = choose(options.url, self.driver, streams=streams)
        return replace(options, url=choice.url, jvm=choice.jvm)

    @property
    def _is_of_lake(self) -> bool:
        return any(name.lower() == "lake" for name in self.options)

    def reader(self, schema: StructType) -> Any:
        if self._is_of_lake:
            return LakeReader(LakeOptions.parse(dict(self.options)), schema)
        if self._is_work:
            return self._work.batch_reader(dict(self.options), self.driver, schema)
        return TableReader(self._source_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        if self._is_settle:
            return self._work.batch_writer(dict(self.options), self.driver, schema, overwrite=overwrite)
        return BatchWriter(self._sink_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        if self._is_settle:
            return self._work.stream_writer(dict(self.options), self.driver, schema, overwrite=overwrite)
        return StreamWriter(self._sink_options(schema, overwrite=overwrite))

    def _sink_options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise InvalidOption("mode", "overwrite is not for queues", 'use mode("append")')
        options = replace(SinkOptions.parse(dict(self.options)), counted=CONTENT_COLUMN in schema.names)
        check_columns(options, schema)
        check_types(schema)
        choice = choose(options.url, self.driver)
        check_reachable(choice.url)
        return replace(options, url=choice.url, jvm=choice.jvm)

    def streamReader(self, schema: StructType) -> Any:
        if self._is_of_lake:
            raise InvalidOption("lake", "cannot be streamed", "read its tables in batches")
        if self._is_work:
            return self._work.stream_reader(dict(self.options), self.driver, schema)
        table = SourceOptions.parse(dict(self.options)).table
        if table != "events":
            raise InvalidOption(
                "table", f"{table!r} cannot be streamed", 'stream "events", read the others in batches'
            )
        return EventStreamReader(self._source_options(streams=True), schema)


def source_for(driver: Driver) -> type[TorilDataSource]:
    """Returns the data source class with the facts of a driver. Spark sends it to its Python processes as a value."""
    return type("TorilDataSource", (TorilDataSource,), {"driver": driver})
