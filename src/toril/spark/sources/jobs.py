"""Reading jobs: ids first, then hashes, then columns.

Guarantee: a job that exists during the whole read is in the table exactly once, in the last state it was seen in,
however it moves meanwhile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from toril.commands.read import get_state
from toril.commands.snapshot import all_lines, finished_ids, ids_by_state, job_hash
from toril.errors import AccessDenied, RedisUnavailable, TorilError
from toril.lake.tables import JOBS, LOGS
from toril.protocol.keys import QueueKeys
from toril.spark.sources.columns import TIME, assemble, constant, number_column, text_column, time_column
from toril.spark.sources.options import SourceOptions, to_ms
from toril.transport import BlockingTransport

logger = logging.getLogger("toril.spark")

FINISHED: Final = ("completed", "failed")
_PIPELINE: Final = 1_000  # hashes per round trip
_ID_PAGE: Final = 50_000  # ids per round trip: some 30 ms of the server

_TEXT: Final = {
    "name": b"name",
    "data": b"data",
    "opts": b"opts",
    "progress": b"progress",
    "returnvalue": b"returnvalue",
    "failed_reason": b"failedReason",
    "stacktrace": b"stacktrace",
    "worker": b"pb",
    "parent_key": b"parentKey",
    "scheduler": b"rjk",
    "deduplication_id": b"deid",
}
_NUMBERS: Final = {
    "delay_ms": b"delay",
    "priority": b"priority",
    "attempts_made": b"atm",
    "attempts_started": b"ats",
    "stalled": b"stc",
}
_TIMES: Final = {"added_at": b"timestamp", "processed_at": b"processedOn", "finished_at": b"finishedOn"}
_KNOWN: Final = frozenset((*_TEXT.values(), *_NUMBERS.values(), *_TIMES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChunk:
    """What one task reads of one queue: ids with the state they were listed in."""

    queue: str
    keys: QueueKeys
    ids: tuple[bytes, ...]
    states: tuple[str, ...]


def list_jobs(transport: BlockingTransport, keys: QueueKeys, options: SourceOptions) -> dict[bytes, str]:
    """Id → state. Finished sets are read around the moving ones, so that a job that moves meanwhile is not missed."""
    if options.ids:
        return _named(transport, keys, options)
    moving = [state for state in options.states if state not in FINISHED]
    found: dict[bytes, str] = {}
    if moving:
        if "failed" in options.states:
            found.update(_finished(transport, keys, "failed", options))
        for state, ids in transport.run(ids_by_state(keys, moving)).items():
            found.update(dict.fromkeys(ids, state))
    for state in FINISHED:
        if state in options.states:
            found.update(_finished(transport, keys, state, options))
    return found


def _named(transport: BlockingTransport, keys: QueueKeys, options: SourceOptions) -> dict[bytes, str]:
    """The jobs that the options name, without a look at any other."""
    found: dict[bytes, str] = {}
    for start in range(0, len(options.ids), _ID_PAGE):
        ids = options.ids[start : start + _ID_PAGE]
        replies = transport.run_many([get_state(keys, job_id) for job_id in ids])
        for job_id, state in zip(ids, replies, strict=True):
            if isinstance(state, TorilError):
                raise state
            if state in options.states:
                found[job_id.encode()] = state
    return found


def _finished(
    transport: BlockingTransport, keys: QueueKeys, state: str, options: SourceOptions
) -> Iterator[tuple[bytes, str]]:
    key = keys.completed if state == "completed" else keys.failed
    lowest = str(to_ms(options.since)) if options.since else "-inf"
    highest = str(to_ms(options.until)) if options.until else "+inf"
    size = _ID_PAGE
    while True:
        page = transport.run(finished_ids(key, lowest, highest, size))
        yield from ((job_id, state) for job_id, _ in page)
        if len(page) < size:
            return
        following = page[-1][1].decode()
        # A page full of one millisecond would come again for ever: take more at once.
        size = size * 2 if following == lowest else _ID_PAGE
        lowest = following


def chunks(queue: str, keys: QueueKeys, found: Mapping[bytes, str], size: int) -> Iterator[JobChunk]:
    """The jobs of a queue in portions of `size`."""
    for part in _batched(list(found.items()), size):
        ids, states = zip(*part, strict=True)
        yield JobChunk(queue=queue, keys=keys, ids=ids, states=states)


def _batched(items: Sequence[tuple[bytes, str]], size: int) -> Iterator[Sequence[tuple[bytes, str]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def read_jobs(transport: BlockingTransport, chunk: JobChunk) -> Iterator[pa.Table]:
    """The jobs of a chunk; those removed meanwhile are left out."""
    for start in range(0, len(chunk.ids), _PIPELINE):
        ids, states = chunk.ids[start : start + _PIPELINE], chunk.states[start : start + _PIPELINE]
        hashes = transport.run_many([job_hash(chunk.keys.base + one.decode(errors="replace")) for one in ids])
        yield jobs_table(chunk.queue, ids, states, [_read(one, {}) for one in hashes])


def _read(reply: Any, nothing: Any) -> Any:
    """Returns a reply; `nothing` for a key of another type, which is no job: it must not hide the others."""
    if isinstance(reply, (RedisUnavailable, AccessDenied)):
        raise reply
    if isinstance(reply, TorilError):
        logger.warning("a key in the place of a job is left out: %s", reply)
        return nothing
    return reply


def jobs_table(
    queue: str, ids: Sequence[bytes], states: Sequence[str], hashes: Sequence[Mapping[bytes, bytes]]
) -> pa.Table:
    """Hashes as columns."""
    there = [row for row, fields in enumerate(hashes) if fields]
    kept = [hashes[row] for row in there]
    columns: dict[str, Any] = {
        "queue": constant(queue, len(kept)),
        "job_id": text_column([ids[row] for row in there]),
        "state": pa.array([states[row] for row in there], pa.string()),
        "snapshot_at": pa.repeat(pa.scalar(datetime.now(UTC), TIME), len(kept)),
    }
    present = set().union(*kept)  # most jobs have half of the fields
    for build, names in ((text_column, _TEXT), (number_column, _NUMBERS), (time_column, _TIMES)):
        for column, field in names.items():
            if field in present:
                columns[column] = build([fields.get(field) for fields in kept])
    if not present <= _KNOWN:
        columns["extra"] = pa.array([_extra(fields) for fields in kept], pa.string())
    return assemble(JOBS.schema, columns, len(kept))


def _extra(fields: Mapping[bytes, bytes]) -> str | None:
    strange = fields.keys() - _KNOWN
    if not strange:
        return None
    words = {name.decode(errors="replace"): fields[name].decode(errors="replace") for name in sorted(strange)}
    return json.dumps(words, ensure_ascii=False)


def read_logs(transport: BlockingTransport, chunk: JobChunk) -> Iterator[pa.Table]:
    """One row per log line of the jobs of a chunk."""
    for start in range(0, len(chunk.ids), _PIPELINE):
        ids = chunk.ids[start : start + _PIPELINE]
        lists = transport.run_many([all_lines(chunk.keys.logs(one.decode(errors="replace"))) for one in ids])
        yield _logs_table(chunk.queue, ids, [_read(one, []) for one in lists])


def _logs_table(queue: str, ids: Sequence[bytes], lists: Sequence[Sequence[bytes]]) -> pa.Table:
    rows = [
        (job_id, line, text)
        for job_id, lines in zip(ids, lists, strict=True)
        for line, text in enumerate(lines)
    ]
    columns = {
        "queue": constant(queue, len(rows)),
        "job_id": text_column([row[0] for row in rows]),
        "line": pa.array([row[1] for row in rows], pa.int64()),
        "text": text_column([row[2] for row in rows]),
        "snapshot_at": pa.repeat(pa.scalar(datetime.now(UTC), TIME), len(rows)),
    }
    return assemble(LOGS.schema, columns, len(rows))
