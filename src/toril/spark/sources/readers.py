"""The two Spark adapters of the sources: one for batches, one for streams of events.

Guarantee: readers keep nothing that matters between calls: offsets come from Spark's checkpoint and from Redis, and
each task opens its own connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from toril.errors import EventsLost, InvalidOption
from toril.lake.tables import GAP_EVENT
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.spark.python import Portable
from toril.spark.sources.discovery import QueueSelection, check_named
from toril.spark.sources.entries import read_entries, read_rejects
from toril.spark.sources.events import SOURCE_SCHEMA, read_with_gap
from toril.spark.sources.jobs import JobChunk, chunks, list_jobs, read_jobs, read_logs
from toril.spark.sources.options import SourceOptions, to_ms
from toril.spark.sources.positions import (
    ORIGIN,
    Position,
    Stretch,
    end_of,
    id_parts,
    plan_end,
    read_stream_states,
    split_exactly,
    stretch,
)
from toril.spark.sources.server_choice import check_reachable, require_driver_jvm
from toril.spark.sources.worker_reports import read_reports
from toril.transport import BlockingTransport, ConnectionPolicy
from toril.transport.discovery import AnyKeys

# Pages hold thousands of values; a slow network may need longer for them than for a worker's small replies.
POLICY = ConnectionPolicy(command_timeout=60.0)
_JOBS_PER_TASK = 25_000  # a second or less of reading
_FEW_ROWS = 20_000  # below that, a second task costs more than it brings
_LAST_SEQ = 2**64 - 1  # no entry of a millisecond has a higher number


def open_transport(url: str | None, *, name: str | None = None) -> BlockingTransport:
    """A connection to the server that the driver chose; a task does not choose one itself."""
    if url is None:
        raise TypeError("the driver handed over no address of a server")
    return BlockingTransport(url, policy=POLICY, name=name)


def source_schema(options: SourceOptions) -> pa.Schema:
    """The Arrow schema of a table as sources give it, reduced to the columns asked for."""
    schema = SOURCE_SCHEMA if options.table == "events" else options.spec.schema
    return pa.schema([schema.field(name) for name in options.columns]) if options.columns else schema


@dataclass(frozen=True, slots=True)
class Entries:
    """What one task reads of one queue that is no event stream: entries in (`after`, `until`], where they have ids."""

    queue: str
    keys: AnyKeys
    after: str
    until: str


class Task(InputPartition):
    """What one Spark task reads: parts of one or many queues."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__(None)
        self.parts = list(parts)


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Refuses a schema of the user's with columns or types that the table does not have."""
    known = source_schema(replace(options, columns=()))
    for field in to_arrow_schema(schema, timezone="UTC"):
        if field.name not in known.names:
            remedy = f"leave the schema out, or name some of {', '.join(known.names)}"
            raise InvalidOption("schema", f"{options.table} has no column {field.name!r}", remedy)
        if field.type != known.field(field.name).type:
            problem = f"{field.name!r} is {known.field(field.name).type} here, not {field.type}"
            raise InvalidOption("schema", problem, "leave the schema out and cast afterwards")


def parts_of(task: InputPartition) -> list[Any]:
    """What a task reads; Spark makes an empty task of its own when there is nothing."""
    return task.parts if isinstance(task, Task) else []


def read_task(task: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as Arrow batches in exactly the schema that Spark expects."""
    require_driver_jvm(options.jvm)
    expected = to_arrow_schema(schema, timezone="UTC")
    with open_transport(options.url) as transport:
        for part in parts_of(task):
            for table in _read_part(transport, part, options):
                yield from table.select(expected.names).cast(expected).to_batches()


def _refuse_gaps(pages: Iterator[pa.Table], queue: str) -> Iterator[pa.Table]:
    for page in pages:
        gaps = page.filter(pc.equal(page["event"], GAP_EVENT))
        if gaps.num_rows:
            raise EventsLost(queue, pc.sum(gaps["lost"]).as_py())
        yield page


def _read_part(transport: BlockingTransport, part: object, options: SourceOptions) -> Iterator[pa.Table]:
    match part:
        case Stretch():
            pages = read_with_gap(transport, part)
            return _refuse_gaps(pages, part.queue) if options.on_gap == "fail" else pages
        case JobChunk():
            return (read_logs if options.table == "logs" else read_jobs)(transport, part)
        case Entries(queue, QueueKeys() as keys) if options.table == "worker_reports":
            return read_reports(transport, queue, keys)
        case Entries(queue, keys, after, until) if options.table == "rejects":
            return read_rejects(transport, queue, keys, after, until)
        case Entries(queue, (ListKeys() | StreamKeys()) as keys, after, until):
            return read_entries(transport, queue, keys, options.spec, after, until)
        case _:
            raise TypeError(f"not a part of a task: {part!r}")


def pack(parts: Sequence[object], size: Callable[[Any], int], limit: int) -> list[Task]:
    """Parts together in tasks of about `limit` rows: a hundred quiet queues are one task, not a hundred."""
    tasks: list[Task] = []
    current: list[object] = []
    rows = 0
    for part in parts:
        if current and rows + size(part) > limit:
            tasks.append(Task(current))
            current, rows = [], 0
        current.append(part)
        rows += size(part)
    return [*tasks, Task(current)] if current else tasks


class TableReader(Portable, DataSourceReader):
    """`spark.read.format("toril")`: what is there now."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_named(options)
        check_schema(options, schema)
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        check_reachable(self.options.url)
        with open_transport(self.options.url) as transport:
            queues = QueueSelection(self.options).existing(transport)
            match self.options.table:
                case "events":
                    return _plan_events(transport, queues, self.options)
                case "jobs" | "logs":
                    return _plan_jobs(transport, queues, self.options)
                case _:
                    return _plan_entries(queues, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self.options, self.schema)


def _plan_events(
    transport: BlockingTransport, queues: Mapping[str, AnyKeys], options: SourceOptions
) -> list[InputPartition]:
    streams = stream_keys(queues)
    start = _position_before(options.since)
    ends = {queue: end_of(state) for queue, state in read_stream_states(transport, streams).items()}
    if options.until is not None:
        ends = {queue: _earlier_position(end, _end_of(options.until)) for queue, end in ends.items()}
    return plan_tasks(transport, streams, dict.fromkeys(ends, start), ends, options.rows_per_task)


def _plan_entries(queues: Mapping[str, AnyKeys], options: SourceOptions) -> list[InputPartition]:
    after = _position_before(options.since).id
    until = "+" if options.until is None else _end_of(options.until).id
    return [Task([Entries(queue, keys, after, until)]) for queue, keys in queues.items()]


# Before and at a moment in time nobody knows how many events there were: no count, hence no gap row.


def _position_before(moment: datetime | None) -> Position:
    """The last place before a moment: reading after it gives what happened at that moment, too."""
    return ORIGIN if moment is None else Position(f"{to_ms(moment) - 1}-{_LAST_SEQ}", None)


def _end_of(moment: datetime) -> Position:
    """The last place of a moment's millisecond."""
    return Position(f"{to_ms(moment)}-{_LAST_SEQ}", None)


def _earlier_position(one: Position, other: Position) -> Position:
    return one if id_parts(one.id) <= id_parts(other.id) else other


def plan_tasks(
    transport: BlockingTransport,
    streams: Mapping[str, str],
    start: Mapping[str, Position],
    end: Mapping[str, Position],
    rows: int,
) -> list[InputPartition]:
    """Tasks for all events between two offsets."""
    parts: list[Stretch] = []
    for queue, position in end.items():
        one = stretch(queue, streams[queue], start.get(queue, ORIGIN), position)
        if one is not None:
            parts += split_exactly(transport, one, rows)
    total = sum(part.expected or rows for part in parts)
    return list(pack(parts, lambda part: part.expected or rows, _rows_of_a_task(total, rows)))


def _rows_of_a_task(total: int, most: int) -> int:
    """A share of all rows for each core of the driver's machine; not so few that a task costs more than it reads."""
    return min(most, max(_FEW_ROWS, -(-total // (os.cpu_count() or 1))))


def stream_keys(queues: Mapping[str, AnyKeys]) -> dict[str, str]:
    return {queue: keys.events for queue, keys in queues.items() if isinstance(keys, QueueKeys)}


def _plan_jobs(
    transport: BlockingTransport, queues: Mapping[str, AnyKeys], options: SourceOptions
) -> list[InputPartition]:
    parts: list[JobChunk] = []
    for queue, keys in queues.items():
        if isinstance(keys, QueueKeys):
            parts += chunks(queue, keys, list_jobs(transport, keys, options), _JOBS_PER_TASK)
    return list(pack(parts, lambda part: len(part.ids), _JOBS_PER_TASK))


class EventStreamReader(Portable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("toril")`: events as they come; the offset of each queue is `id|entries-added`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_named(options)
        self.options = options
        self.schema = schema
        self._directory = QueueSelection(options)
        self._targets: dict[str, Position] | None = None
        self._transport: BlockingTransport | None = (
            None  # of the driver's planning process; never pickled in use
        )

    @property
    def transport(self) -> BlockingTransport:
        if self._transport is None:
            check_reachable(self.options.url)
            self._transport = open_transport(self.options.url)
        return self._transport

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transport": None}

    def initialOffset(self) -> dict[str, str]:
        moment = self.options.start_time()
        if moment is not None:
            position = _position_before(moment)
            return {queue: str(position) for queue in self._streams()}
        if self.options.starting == "latest":
            return {
                queue: str(end_of(state))
                for queue, state in read_stream_states(self.transport, self._streams()).items()
            }
        return dict.fromkeys(self._streams(), str(ORIGIN))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        states = read_stream_states(self.transport, self._streams())
        self._targets = {queue: end_of(state) for queue, state in states.items()}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        streams = self._streams()
        if self._targets is not None:
            streams = {queue: key for queue, key in streams.items() if queue in self._targets}
        begin = {queue: Position.parse(text) for queue, text in start.items()}
        ends = plan_end(self.transport, streams, begin, self._targets or {}, rows)
        return {queue: str(position) for queue, position in ends.items()}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begin = {queue: Position.parse(text) for queue, text in start.items()}
        until = {queue: Position.parse(text) for queue, text in end.items()}
        return self._plan(begin, until)

    def _plan(self, start: Mapping[str, Position], end: Mapping[str, Position]) -> Sequence[InputPartition]:
        return plan_tasks(self.transport, self._keys_for(end), start, end, self.options.rows_per_task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self.options, self.schema)

    def commit(self, end: dict[str, str]) -> None:
        """Nothing to do: events stay in Redis until they are trimmed."""

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _streams(self) -> dict[str, str]:
        return stream_keys(self._directory.queues(self.transport))

    def _keys_for(self, offsets: Mapping[str, Position]) -> dict[str, str]:
        """Stream keys of all queues of an offset, also those that the pattern no longer finds."""
        streams = self._streams()
        cluster = self.transport.is_cluster
        return {
            queue: streams.get(queue)
            or QueueKeys(queue, self.options.prefix, found=True).resolve(cluster=cluster).events
            for queue in offsets
        }
