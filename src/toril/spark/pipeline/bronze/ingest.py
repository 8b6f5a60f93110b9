"""Ingest: events from Redis to bronze/events.

Guarantee: every event that could be read is in the table once, whatever is killed or replayed: the position of each
queue is committed with its rows in one transaction, and rows up to a committed position are never added again.

Executors read streams and write Parquet beside the table; only one line about each file goes through Spark. The
driver commits all files of a micro-batch at once. What was trimmed before it could be read becomes gap rows in the same
commit.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StringType, StructField, StructType

from toril.commands.streams import StreamState
from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.bronze.read_ahead import ReadAhead
from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position, position_marks
from toril.spark.pipeline.files.manifest import Manifest, PartRead
from toril.spark.pipeline.files.parquet_files import read_columns, write_parts
from toril.spark.sources.events import SOURCE_SCHEMA, gap_table, read_stretch
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.positions import (
    ORIGIN,
    Position,
    Stretch,
    id_parts,
    read_stream_states,
    split_by_time,
    stretch,
)
from toril.spark.sources.readers import EventStreamReader, open_transport, pack, parts_of
from toril.transport import BlockingTransport

_ROWS_PER_TASK: Final = 20_000  # below that, a second task costs more than it brings
# A query and the follower that reads in its place may commit at the same time.
_COMMITTING: Final = threading.Lock()
_MANIFEST: Final = StructType([StructField("manifest", StringType())])


# --- executors -----------------------------------------------------------------------------------------------


def write_days(lake: Lake, table: pa.Table) -> list[DataFile]:
    """One file per day."""
    return write_parts(lake, TABLE, table.append_column("day", table.column("ts").cast(pa.date32())))


class IngestReader(EventStreamReader):
    """An event stream whose tasks write files instead of returning rows to Spark."""

    def __init__(
        self, options: SourceOptions, lake: Lake, parts: int, ahead: ReadAhead | None = None
    ) -> None:
        super().__init__(options, _MANIFEST)
        self.lake = lake
        self.parts = parts
        self._ahead = ahead
        self._is_ahead_ours = ahead is None

    def initialOffset(self) -> dict[str, str]:
        """Returns where the table ends. So nothing is lost with a checkpoint."""
        log = self.lake.ensure(TABLE)
        known = {queue: committed_position(log, queue) for queue in self._streams()}
        fresh = {queue: text for queue, text in super().initialOffset().items() if known[queue] == ORIGIN}
        return {**{queue: str(position) for queue, position in known.items()}, **fresh}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        if self._targets is None:  # it goes on: nothing may be trimmed while a batch is at work
            self._ahead = self._ahead or ReadAhead(self.options.url)
            self._ahead.follow(self.transport, self._streams())
        return super().latestOffset(start, limit)

    def stand_by(self, ahead: ReadAhead) -> None:
        """Follows all streams while another reader commits, and drops what it committed."""
        streams, log = self._streams(), self.lake.ensure(TABLE)
        ahead.follow(self.transport, streams)
        ahead.forget({queue: committed_position(log, queue) for queue in streams})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ahead": None}

    def stop(self) -> None:
        if self._ahead is not None and self._is_ahead_ours:
            self._ahead.stop()
        super().stop()

    def _plan(self, start: Mapping[str, Position], end: Mapping[str, Position]) -> Sequence[InputPartition]:
        keys = self._keys_for(end)
        wholes = [
            stretch(queue, keys[queue], start.get(queue, ORIGIN), position) for queue, position in end.items()
        ]
        present = [one for one in wholes if one is not None]
        states = read_stream_states(self.transport, {one.queue: one.key for one in present})
        parts = [part for whole in present for part in self._parts(whole, states.get(whole.queue))]
        limit = max(_ROWS_PER_TASK, sum(part.rows for part in parts) // max(self.parts, 1))
        return list(pack(parts, lambda part: part.rows, limit))

    def _parts(self, whole: Stretch, state: StreamState | None) -> Iterator[Part]:
        rest, here = self._ahead.cover(self.transport, whole) if self._ahead is not None else (whole, None)
        if here is not None:
            yield Part(whole, whole, here.num_rows, _packed(here))
        if rest is not None:
            rows = whole.expected or self.options.rows_per_task
            pieces = max(1, min(self.parts, rows // _ROWS_PER_TASK))
            first_id = state.first_id if state is not None else None
            split = split_by_time(rest, first_id, pieces) if first_id and pieces > 1 else [rest]
            yield from (Part(whole, part, rows // len(split)) for part in split)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with open_transport(self.options.url) as transport:
            manifest = self.write(transport, partition).to_json()
        yield pa.RecordBatch.from_pydict({"manifest": [manifest]})

    def write(self, transport: BlockingTransport, partition: InputPartition) -> Manifest:
        """Reads the part of a task and writes it to files that are not committed yet."""
        reads: list[PartRead] = []
        tables: list[pa.Table] = []
        for part in parts_of(partition):
            pages = [_unpacked(part.events)] if part.events else list(read_stretch(transport, part.stretch))
            rows = sum(page.num_rows for page in pages)
            first_id = pages[0]["id"][0].as_py() if rows else None
            reads.append(PartRead(part.whole, part.stretch, rows, first_id))
            tables += pages
        files = write_days(self.lake, pa.concat_tables(tables)) if tables else []
        return Manifest({TABLE: files}, tuple(reads))


@dataclass(frozen=True, slots=True)
class Part:
    """What a task writes: part of the stretch of a queue. It is read from Redis unless the events are included."""

    whole: Stretch
    stretch: Stretch
    rows: int
    events: bytes = b""


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(events: bytes) -> pa.Table:
    return pa.ipc.open_stream(events).read_all()


class IngestSource(DataSource):
    """The data source of the ingest query; not public."""

    @classmethod
    def name(cls) -> str:
        return "toril_ingest"

    def schema(self) -> StructType:
        return _MANIFEST

    def streamReader(self, schema: StructType) -> IngestReader:
        return reader_of(self.options)


def reader_of(given: Mapping[str, str], ahead: ReadAhead | None = None) -> IngestReader:
    """The reader that the options of the source describe; `ahead` outlives it."""
    options = dict(given)
    lake = Lake(options.pop("lake"), json.loads(options.pop("storage_secrets", "{}")))
    parts = int(options.pop("parts", "2"))
    return IngestReader(SourceOptions.parse(options), lake, parts, ahead)


# --- the driver ----------------------------------------------------------------------------------------------


class BronzeWriter:
    """Commits what the tasks of a micro-batch wrote; called by Spark for each batch, also for replayed ones."""

    def __init__(self, lake: Lake, query: str = "ingest") -> None:
        self.lake = lake
        self.query = query

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.commit([Manifest.from_json(row.manifest) for row in batch.collect()], batch_id)

    def commit(self, manifests: Sequence[Manifest], batch_id: int) -> None:
        """Commits rows, gaps and positions that are not in the table yet."""
        with _COMMITTING:
            self._commit(manifests, batch_id)

    def _commit(self, manifests: Sequence[Manifest], batch_id: int) -> None:
        log = self.lake.ensure(TABLE)
        read = _by_queue(manifests)
        known = {queue: committed_position(log, queue) for queue in read}
        joined = {
            queue: replace(one, whole=_from_committed(one.whole, known[queue])) for queue, one in read.items()
        }
        new = {queue: one for queue, one in joined.items() if _is_new(one.whole, known[queue])}
        if not new:
            return
        files = [file for one in manifests for file in one.files[TABLE]]
        if len(new) < len(joined) or any(_overlaps(one.whole, known[queue]) for queue, one in new.items()):
            files, new = self._only_new(files, new, known)
        gaps = {queue: gap for queue, one in new.items() if (gap := _gap_of(one, known[queue])) is not None}
        if gaps:
            files += write_days(self.lake, pa.concat_tables(gaps.values()))
        ends = {queue: one.whole.end for queue, one in new.items()}
        log.commit(
            files,
            application=f"toril.{self.query}",
            version=batch_id,
            marks=position_marks(ends),
            note={"query": self.query, "batch": batch_id, "gaps": list(gaps)},
        )

    def _only_new(
        self,
        files: Sequence[DataFile],
        new: Mapping[str, QueueRead],
        known: Mapping[str, Position],
    ) -> tuple[list[DataFile], dict[str, QueueRead]]:
        """Returns the rows of a replayed batch without those that were committed before."""
        rows = pa.concat_tables([read_columns(self.lake, TABLE, file, SOURCE_SCHEMA.names) for file in files])
        kept: list[pa.Table] = []
        left: dict[str, QueueRead] = {}
        for queue, one in new.items():
            start = known[queue] if _overlaps(one.whole, known[queue]) else one.whole.start
            part = _after(rows.filter(pc.equal(rows.column("queue"), queue)), start)
            first_id = min(part["id"].to_pylist(), key=id_parts, default=None)
            left[queue] = QueueRead(replace(one.whole, start=start), part.num_rows, first_id)
            kept.append(part)
        table = pa.concat_tables(kept)
        return write_days(self.lake, _as_events(table)) if table.num_rows else [], left


@dataclass(frozen=True, slots=True)
class QueueRead:
    """What all tasks of a batch read of a queue."""

    whole: Stretch
    rows: int
    first_id: str | None


def _gap_of(one: QueueRead, known: Position) -> pa.Table | None:
    return gap_table(one.whole, one.rows, one.first_id, known.id if one.whole.recreated else None)


def _as_events(table: pa.Table) -> pa.Table:
    return table.select(SOURCE_SCHEMA.names).cast(SOURCE_SCHEMA)


def _after(rows: pa.Table, position: Position) -> pa.Table:
    ms, seq = id_parts(position.id)
    row_ms = rows.column("ts").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    later = pc.or_(pc.greater(row_ms, ms), pc.and_(pc.equal(row_ms, ms), pc.greater(rows.column("seq"), seq)))
    return rows.filter(later)


def _by_queue(manifests: Sequence[Manifest]) -> dict[str, QueueRead]:
    parts: dict[str, list[PartRead]] = defaultdict(list)
    for one in manifests:
        for part in one.reads:
            parts[part.whole.queue].append(part)
    return {queue: _sum_of_parts(some) for queue, some in parts.items()}


def _sum_of_parts(parts: Sequence[PartRead]) -> QueueRead:
    first_id = min((one.first_id for one in parts if one.first_id), key=id_parts, default=None)
    return QueueRead(parts[-1].whole, sum(one.rows for one in parts), first_id)


def _from_committed(whole: Stretch, known: Position) -> Stretch:
    """The stretch as the table sees it.

    A batch that begins after the end of the table (it was restored from a copy): what lies between is lost. A stream
    that was deleted before somebody else committed events of the new one: the table has noted that already.
    """
    if whole.recreated and known != ORIGIN:
        since = stretch(whole.queue, whole.key, known, whole.end)
        return replace(whole, recreated=since is not None and since.recreated)
    skips = known != ORIGIN and id_parts(whole.start.id) > id_parts(known.id)
    return replace(whole, start=known) if skips else whole


def _is_new(whole: Stretch, known: Position) -> bool:
    return id_parts(whole.end.id) > id_parts(known.id)


def _overlaps(whole: Stretch, known: Position) -> bool:
    return not whole.recreated and id_parts(whole.start.id) < id_parts(known.id)
