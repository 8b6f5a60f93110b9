"""The task of snapshots: hashes of jobs are read from Redis and written as files of bronze/jobs and bronze/logs.

Guarantee: a row names the events that it was read for, and the hash is of the same use of the job's id.

An id may be used again while the pipeline reads: then the hash is that of the next job with this id. Its times show it:
a job that was added after the known events, and before the hash was read, is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.commands.command import Command
from toril.commands.read import get_fields, get_lock
from toril.commands.snapshot import job_hash
from toril.commands.streams import StreamState, stream_state
from toril.errors import TorilError
from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.files.manifest import Manifest
from toril.spark.pipeline.files.parquet_files import write_file
from toril.spark.sources.columns import whole_number
from toril.spark.sources.jobs import FINISHED, JobChunk, jobs_table, read_logs
from toril.spark.sources.positions import id_parts
from toril.spark.sources.readers import open_transport
from toril.transport import BlockingTransport

JOBS, LOGS = "bronze/jobs", "bronze/logs"
_PIPELINE: Final = 1_000  # hashes per round trip
_AT_WORK: Final = {b"state": b"active"}  # whoever has a lock is
ANSWER: Final = pa.schema([("files", pa.string())])
# Of jobs that have not ended: what tells about their attempts. Data and results come when they end.
_FIELDS: Final = (
    *("name", "opts", "timestamp", "delay", "priority", "processedOn", "finishedOn"),
    *("pb", "ats", "atm", "stc", "failedReason", "stacktrace"),
)


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job whose hash is to be read."""

    id: str
    state: str
    pickups: int  # that the hash must count, at least
    first_id: str | None  # None: read after a gap, for all that the events may not have told
    last_id: str | None

    @property
    def whole(self) -> bool:
        return self.state in FINISHED or self.first_id is None


@dataclass(frozen=True, slots=True)
class SnapshotWriter:
    """Reads jobs and writes files; runs on executors."""

    lake: Lake
    url: str | None = field(repr=False)
    prefix: str
    positions: Mapping[str, str]  # queue → the last event that is known of it
    with_logs: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            found = self._read(pa.Table.from_batches(rows))
            files = {name: self._write(name, tables) for name, tables in found.items()}
            yield pa.RecordBatch.from_pydict({"files": [Manifest(files).to_json()]}, schema=ANSWER)

    def _read(self, jobs: pa.Table) -> dict[str, list[pa.Table]]:
        found: dict[str, list[pa.Table]] = {JOBS: [], LOGS: []}
        with open_transport(self.url) as transport:
            for queue in pc.unique(jobs["queue"]).to_pylist():
                keys = QueueKeys(queue, self.prefix, found=True).resolve(cluster=transport.is_cluster)
                asked = _requested(jobs.filter(pc.equal(jobs["queue"], queue)))
                for start in range(0, len(asked), _PIPELINE):
                    self._read_page(transport, keys, queue, asked[start : start + _PIPELINE], found)
        return found

    def _read_page(
        self,
        transport: BlockingTransport,
        keys: QueueKeys,
        queue: str,
        asked: Sequence[RequestedJob],
        found: dict[str, list[pa.Table]],
    ) -> None:
        hashes, last_id = _hashes(transport, keys, asked)
        known = id_parts(self.positions.get(queue, last_id))
        # Without an event since, no id can have been used again.
        now_ms = transport.now_ms() if id_parts(last_id) > known else 0
        rows = [
            (one, fields)
            for one, fields in zip(asked, hashes, strict=True)
            if fields and not (one.first_id and _is_of_later_job(fields, known[0], now_ms))
        ]
        found[JOBS].append(_table(queue, rows, last_id))
        if self.with_logs:
            ended = [one for one, _ in rows if one.whole]
            chunk = JobChunk(queue=queue, keys=keys, ids=tuple(one.id.encode() for one in ended), states=())
            found[LOGS] += read_logs(transport, chunk)

    def _write(self, name: str, tables: Sequence[pa.Table]) -> list[DataFile]:
        full = [table for table in tables if table.num_rows]
        return [write_file(self.lake, name, pa.concat_tables(full), {})] if full else []


def _requested(jobs: pa.Table) -> list[RequestedJob]:
    columns = (jobs[name].to_pylist() for name in ("job_id", "state", "pickups", "first_id", "last_id"))
    return [RequestedJob(*row) for row in zip(*columns, strict=True)]


def _hashes(
    transport: BlockingTransport, keys: QueueKeys, asked: Sequence[RequestedJob]
) -> tuple[list[dict[bytes, bytes]], str]:
    """The fields of some jobs, and the last event of the queue after they were read."""
    reads = [command for one in asked for command in _read_commands(keys, one)]
    replies = iter(transport.run_many([*reads, stream_state(keys.events)]))
    hashes = [_fields(one, replies) for one in asked]
    state = next(replies)
    return hashes, state.last_id if isinstance(state, StreamState) else "0-0"


def _read_commands(keys: QueueKeys, asked: RequestedJob) -> tuple[Command[Any], ...]:
    if asked.whole:
        return (job_hash(keys.job(asked.id)),)
    return get_fields(keys, asked.id, _FIELDS), get_lock(keys, asked.id)


def _fields(asked: RequestedJob, replies: Iterator[Any]) -> dict[bytes, bytes]:
    found = _checked(next(replies))
    if asked.whole:
        return dict(found)
    there = {name.encode(): value for name, value in zip(_FIELDS, found, strict=True) if value is not None}
    return {**there, **_AT_WORK} if _checked(next(replies)) and there else there


def _checked(reply: Any) -> Any:
    if isinstance(reply, TorilError):
        raise reply
    return reply


def _is_of_later_job(fields: Mapping[bytes, bytes], known_ms: int, now_ms: int) -> bool:
    """Whether a job was added between the last event that is known, and now."""
    added = whole_number(fields.get(b"timestamp")) or 0
    return known_ms < added <= now_ms


def _table(queue: str, rows: Sequence[tuple[RequestedJob, dict[bytes, bytes]]], last_id: str) -> pa.Table:
    states = [fields.pop(b"state", one.state.encode()).decode() for one, fields in rows]
    table = jobs_table(queue, [one.id.encode() for one, _ in rows], states, [fields for _, fields in rows])
    events = [_events_of(one, fields, last_id) for one, fields in rows]
    for name, at in (("first_event_id", 0), ("last_event_id", 1)):
        column = pa.array([pair[at] for pair in events], pa.string())
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return table


def _events_of(
    asked: RequestedJob, fields: Mapping[bytes, bytes], last_id: str
) -> tuple[str | None, str | None]:
    """Returns the events that a hash is read for: none, if it counts fewer pickups than the events do."""
    if (whole_number(fields.get(b"ats")) or 0) < asked.pickups:
        return None, None
    return asked.first_id, asked.last_id or last_id
