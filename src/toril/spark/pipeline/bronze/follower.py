"""The follower: the driver itself copies events from Redis to bronze/events, until it is stopped.

Guarantee: the same rows, gaps and positions as those of `ingest_once`, by the same plans and the same commits. It needs
neither Java nor executors: it starts before Spark, and continues while Spark is restarted. What was read ahead of a
commit that failed is kept for the next attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from toril.spark.pipeline.bronze.ingest import BronzeWriter, IngestReader, reader_of
from toril.spark.pipeline.bronze.read_ahead import ReadAhead
from toril.spark.pipeline.bronze.start_positions import commit_starts
from toril.spark.pipeline.context import PipelineContext


class Follower:
    """Follows the event streams of some queues on the thread that calls `run`."""

    def __init__(self, context: PipelineContext) -> None:
        self._context = context
        self._options = context.source_options()
        self._ahead: ReadAhead | None = None
        self._standing_by: IngestReader | None = None
        self.batches = 0

    def run(self, stop: threading.Event, on_sign: Callable[[], object]) -> None:
        """Runs until `stop` is set. An error ends it; it may be run again. `on_sign` is called after each round."""
        reader = reader_of(self._options, self._read_ahead())
        writer = BronzeWriter(reader.lake)
        try:
            commit_starts(self._context)
            position = reader.initialOffset()
            while not stop.is_set():
                position = self._advance(reader, writer, position)
                on_sign()
                stop.wait(self._context.options.interval)
        finally:
            reader.stop()

    def _advance(self, reader: IngestReader, writer: BronzeWriter, start: dict[str, str]) -> dict[str, str]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        tasks = reader.partitions(start, end) if end != start else ()
        if tasks:
            writer.commit([reader.write(reader.transport, task) for task in tasks], self.batches)
            self.batches += 1
        return end

    def stand_by(self) -> None:
        """To be called again and again while another commits: if that one ends, nothing was trimmed meanwhile."""
        if self._standing_by is None:
            self._standing_by = reader_of(self._options, self._read_ahead())
        self._standing_by.stand_by(self._read_ahead())

    def _read_ahead(self) -> ReadAhead:
        if self._ahead is None:
            self._ahead = ReadAhead(self._options.get("url"))
        return self._ahead

    def close(self) -> None:
        if self._standing_by is not None:
            self._standing_by.stop()
            self._standing_by = None
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
