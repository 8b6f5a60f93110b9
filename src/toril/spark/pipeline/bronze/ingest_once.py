"""Ingest once: copies the events that Redis holds now to bronze/events, without a streaming query.

Guarantee: the same rows, gaps and positions as those of the streaming query, by the same plans and the same
commits. Without a query there is no checkpoint: reading begins where the table ends.

A query over a Python source starts five Python processes, one after the other, before it reads an event; here one
is enough, or none: the engine says where the tasks run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from toril.spark.pipeline.bronze.ingest import BronzeWriter, IngestReader
from toril.spark.pipeline.engines.engine import Engine
from toril.spark.pipeline.files.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

_MANIFEST: Final = pa.schema([("manifest", pa.string())])


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the tasks whose numbers it is given; runs on executors."""

    reader: IngestReader
    tasks: Sequence[InputPartition]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.reader.read(self.tasks[number])


def ingest_once(engine: Engine, reader: IngestReader, writer: BronzeWriter) -> None:
    """Batch after batch, up to the ends that the streams had when it began."""
    reader.prepareForTriggerAvailableNow()
    start, number = reader.initialOffset(), 0
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        tasks = reader.partitions(start, end)
        if tasks:
            writer.commit(_read(engine, reader, tasks), number)
        start, number = end, number + 1


def _read(engine: Engine, reader: IngestReader, tasks: Sequence[InputPartition]) -> list[Manifest]:
    numbers = pa.table({"number": pa.array(range(len(tasks)), pa.int64())})
    lines = engine.each(numbers, TaskReader(reader, tasks), _MANIFEST, parts=len(tasks))
    return [Manifest.from_json(line) for line in lines["manifest"].to_pylist()]
