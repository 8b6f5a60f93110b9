"""The readers and writers of work, for `format("toril")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from toril.errors import InvalidOption
from toril.spark.sources.server_choice import Driver, check_reachable, choose
from toril.spark.worker.settle_options import SettleOptions
from toril.spark.worker.settle_sink import SettleBatchWriter, SettleStreamWriter
from toril.spark.worker.work_options import WorkOptions
from toril.spark.worker.work_source import WorkBatchReader, WorkStreamReader, source_schema

Given = Mapping[str, str]


def schema(given: Given, driver: Driver | None) -> StructType:
    """The columns of table=work."""
    options = WorkOptions.parse(given)
    if driver is not None:
        driver.url_for(options.url)
    made: StructType = from_arrow_schema(source_schema(options))
    return made


def batch_reader(given: Given, driver: Driver | None, schema: StructType) -> WorkBatchReader:
    return WorkBatchReader(_work_options(given, driver), schema)


def stream_reader(given: Given, driver: Driver | None, schema: StructType) -> WorkStreamReader:
    options = _work_options(given, driver, streams=True)
    if options.run is not None:
        raise InvalidOption(
            "run", "is for spark.read", "leave it out: the checkpoint of a stream names its jobs"
        )
    return WorkStreamReader(options, schema)


def batch_writer(
    given: Given, driver: Driver | None, schema: StructType, *, overwrite: bool
) -> SettleBatchWriter:
    return SettleBatchWriter(_settle_options(given, driver, schema, overwrite=overwrite))


def stream_writer(
    given: Given, driver: Driver | None, schema: StructType, *, overwrite: bool
) -> SettleStreamWriter:
    options = _settle_options(given, driver, schema, overwrite=overwrite)
    if options.run is not None:
        raise InvalidOption(
            "run", "is for df.write", "leave it out: the source gives back what a query drops"
        )
    return SettleStreamWriter(options)


def _work_options(given: Given, driver: Driver | None, *, streams: bool = False) -> WorkOptions:
    options = WorkOptions.parse(given)
    choice = choose(options.url, driver, streams=streams)
    return replace(options, url=choice.url, jvm=choice.jvm)


def _settle_options(
    given: Given, driver: Driver | None, schema: StructType, *, overwrite: bool
) -> SettleOptions:
    if overwrite:
        raise InvalidOption("mode", "overwrite is not for queues", 'use mode("append")')
    options = SettleOptions.parse(given)
    options.check_columns(schema)
    choice = choose(options.url, driver)
    check_reachable(choice.url)
    return replace(options, url=choice.url, jvm=choice.jvm)
