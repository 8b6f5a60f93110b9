"""Ingest once: copies the events that Redis holds now to bronze/events, without a streaming query.

Guarantee: the same rows, gaps and positions as those of the streaming query, by the same plans and the same
commits. Without a query there is no checkpoint: reading begins where the table ends.

A query over a Python source starts five Python processes, one after the other, before it reads an event; here one
is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from toril.spark.pipeline.bronze.ingest import BronzeWriter, IngestReader
from toril.spark.pipeline.files.manifest import Manifest
from toril.spark.pipeline.session import in_pool


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the tasks whose numbers it is given; runs on executors."""

    reader: IngestReader
    tasks: Sequence[InputPartition]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.reader.read(self.tasks[number])


def ingest_once(spark: SparkSession, reader: IngestReader, writer: BronzeWriter) -> None:
    """Ingests batches up to the ends that the streams had at the start."""
    reader.prepareForTriggerAvailableNow()
    start, number = reader.initialOffset(), 0
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        tasks = reader.partitions(start, end)
        if tasks:
            writer.commit(_read(spark, reader, tasks), number)
        start, number = end, number + 1


def _read(spark: SparkSession, reader: IngestReader, tasks: Sequence[InputPartition]) -> list[Manifest]:
    with in_pool(spark, "toril_ingest"):
        numbers = spark.range(0, len(tasks), 1, len(tasks))  # one to each Spark task
        lines = numbers.mapInArrow(TaskReader(reader, tasks), "manifest string").toArrow()
    return [Manifest.from_json(line) for line in lines["manifest"].to_pylist()]
