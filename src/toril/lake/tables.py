"""The tables of the lake: names, schemas, partitions, versions.

Guarantee: a schema changes only by added nullable columns; all else raises its version, which readers check.

    bronze   as read from Redis: every event, every snapshot, nothing dropped
    silver   one row per attempt, per job, per gap
    gold     figures per minute and hour, errors by fingerprint, workers, alerts
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from toril.errors import InvalidOption

_TEXT = pa.string()
_COUNT = pa.int64()
_REAL = pa.float64()
_TIME = pa.timestamp("us", tz="UTC")  # what Delta stores, and fine enough for stream ids (milliseconds)
_DAY = pa.date32()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One table: `bronze/events` and how it is laid out."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    version: int = 1
    keys: tuple[str, ...] = ()  # the columns that name a row

    @property
    def layer(self) -> str:
        return self.name.partition("/")[0]

    @property
    def short_name(self) -> str:
        return self.name.partition("/")[2]


GAP_EVENT = (
    "toril.gap"  # a row of bronze/events in place of `lost` events, which were trimmed before they were read
)

EVENTS = TableSpec(
    name="bronze/events",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("id", _TEXT),  # the stream id, "<ms>-<seq>"
            ("ts", _TIME),
            ("seq", _COUNT),
            ("event", _TEXT),
            ("job_id", _TEXT),
            ("name", _TEXT),
            ("prev", _TEXT),
            ("data", _TEXT),  # progress
            ("returnvalue", _TEXT),
            ("failed_reason", _TEXT),
            ("delay_until", _TIME),
            ("extra", _TEXT),  # unknown fields, as a JSON object
            ("lost", _COUNT),  # gap rows only
            ("day", _DAY),
        ]
    ),
    partition_by=("day",),
    keys=("queue", "id", "event"),
)

JOBS = TableSpec(
    name="bronze/jobs",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("job_id", _TEXT),
            ("state", _TEXT),
            ("name", _TEXT),
            ("data", _TEXT),
            ("opts", _TEXT),
            ("progress", _TEXT),
            ("returnvalue", _TEXT),
            ("failed_reason", _TEXT),
            ("stacktrace", _TEXT),
            ("added_at", _TIME),
            ("processed_at", _TIME),
            ("finished_at", _TIME),
            ("delay_ms", _COUNT),
            ("priority", _COUNT),
            ("attempts_made", _COUNT),
            ("attempts_started", _COUNT),
            ("stalled", _COUNT),
            ("worker", _TEXT),
            ("parent_key", _TEXT),
            ("scheduler", _TEXT),
            ("deduplication_id", _TEXT),
            ("extra", _TEXT),
            ("snapshot_at", _TIME),
            # The events of the job that it was read for: they belong to the same use of its id. After a gap there is
            # no first one, and the last one is the end of the queue's events when it was read.
            ("first_event_id", _TEXT),
            ("last_event_id", _TEXT),
        ]
    ),
    keys=("queue", "job_id", "snapshot_at"),
)

LOGS = TableSpec(
    name="bronze/logs",
    schema=pa.schema(
        [("queue", _TEXT), ("job_id", _TEXT), ("line", _COUNT), ("text", _TEXT), ("snapshot_at", _TIME)]
    ),
    keys=("queue", "job_id", "line"),
)

_ENVELOPE = [
    ("job_id", _TEXT),
    ("task_type", _TEXT),
    ("attempts", _COUNT),
    ("max_attempts", _COUNT),
    ("payload", _TEXT),
    ("meta", _TEXT),
    ("enqueue_ts", _TIME),
    ("raw", _TEXT),  # what is stored, exactly; the columns before it are null when it is no envelope
]

STREAM_ENTRIES = TableSpec(
    name="bronze/stream_entries",
    schema=pa.schema(
        [("queue", _TEXT), ("kind", _TEXT), ("id", _TEXT), ("ts", _TIME), *_ENVELOPE, ("snapshot_at", _TIME)]
    ),
    keys=("queue", "kind", "id"),
)

DLQ_ENTRIES = TableSpec(
    name="bronze/dlq_entries",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("kind", _TEXT),
            ("id", _TEXT),
            ("ts", _TIME),
            *_ENVELOPE,
            ("dlq_ts", _TIME),
            ("dlq_reason", _TEXT),
            ("last_error", _TEXT),
            ("snapshot_at", _TIME),
        ]
    ),
    keys=("queue", "kind", "id"),
)

WORKER_REPORTS = TableSpec(
    name="bronze/worker_reports",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("worker", _TEXT),
            ("ts", _TIME),
            ("in_hand", _COUNT),
            ("heartbeats_ok", _COUNT),
            ("heartbeats_failed", _COUNT),
            ("sweeps_done", _COUNT),
            ("sweeps_skipped", _COUNT),
            ("memory_bytes", _COUNT),
            ("extra", _TEXT),
            ("snapshot_at", _TIME),
        ]
    ),
    keys=("queue", "worker", "ts"),
)

REJECTS = TableSpec(
    name="bronze/rejects",
    schema=pa.schema([("queue", _TEXT), ("id", _TEXT), ("ts", _TIME), ("reason", _TEXT), ("row", _TEXT)]),
    keys=("queue", "id"),
)

ATTEMPTS = TableSpec(
    name="silver/attempts",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("job_id", _TEXT),
            ("name", _TEXT),
            ("attempt", _COUNT),  # 1 for the first pickup of a job
            ("added_at", _TIME),
            ("ready_at", _TIME),
            ("active_at", _TIME),
            ("ended_at", _TIME),
            ("outcome", _TEXT),  # completed | failed | retried | stalled | suspended (waits for its children)
            ("wait_ms", _COUNT),
            ("run_ms", _COUNT),
            ("error", _TEXT),
            ("worker", _TEXT),
            ("source", _TEXT),  # events | hash (its events were lost; from the job's hash)
            ("day", _DAY),  # of ended_at
        ]
    ),
    partition_by=("day",),
    keys=("queue", "job_id", "attempt", "active_at"),
)

SILVER_JOBS = TableSpec(
    name="silver/jobs",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("job_id", _TEXT),
            ("name", _TEXT),
            ("state", _TEXT),
            ("attempt", _COUNT),  # pickups so far
            ("stalls", _COUNT),
            ("added_at", _TIME),
            ("ready_at", _TIME),
            ("active_at", _TIME),
            ("finished_at", _TIME),
            ("updated_at", _TIME),
            ("updated_seq", _COUNT),
            ("error", _TEXT),
            ("phase", _TEXT),  # open: replaced by every batch; done: appended, the latest row counts
            # How its pickups ended since it was added: back to wait, delayed, failed, completed, waiting for children.
            ("returns", _COUNT),
            ("delays", _COUNT),
            ("failures", _COUNT),
            ("completions", _COUNT),
            ("suspensions", _COUNT),
        ]
    ),
    partition_by=("phase",),
    keys=("queue", "job_id"),
)

GAPS = TableSpec(
    name="silver/gaps",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("ts", _TIME),  # of the first event after the gap
            ("from_id", _TEXT),
            ("until_id", _TEXT),
            ("lost", _COUNT),  # null: unknown (the stream was deleted, or the server does not count)
            ("reason", _TEXT),  # trimmed | recreated
        ]
    ),
    keys=("queue", "from_id", "until_id"),
)

_FIGURES = [
    ("completed", _COUNT),
    ("failed", _COUNT),
    ("retried", _COUNT),
    ("stalled", _COUNT),
    ("suspended", _COUNT),
    ("attempts", _COUNT),
    ("throughput", _REAL),  # attempts that completed, per second
    ("failure_rate", _REAL),
    ("retry_rate", _REAL),
    ("stall_rate", _REAL),
    ("wait_p50_ms", _REAL),
    ("wait_p95_ms", _REAL),
    ("wait_p99_ms", _REAL),
    ("run_p50_ms", _REAL),
    ("run_p95_ms", _REAL),
    ("run_p99_ms", _REAL),
    ("run_sum_ms", _COUNT),
    ("day", _DAY),
]

QUEUE_MINUTE = TableSpec(
    name="gold/queue_minute",
    schema=pa.schema([("queue", _TEXT), ("minute", _TIME), *_FIGURES]),
    partition_by=("day",),
    keys=("queue", "minute"),
)
QUEUE_HOUR = TableSpec(
    name="gold/queue_hour",
    schema=pa.schema([("queue", _TEXT), ("hour", _TIME), *_FIGURES]),
    partition_by=("day",),
    keys=("queue", "hour"),
)
ERRORS = TableSpec(
    name="gold/errors",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("fingerprint", _TEXT),
            ("pattern", _TEXT),  # the message with numbers, ids and quoted parts replaced
            ("name", _TEXT),
            ("count", _COUNT),
            ("jobs", _COUNT),
            ("first_at", _TIME),
            ("last_at", _TIME),
            ("sample", _TEXT),
            ("sample_job_id", _TEXT),
            ("day", _DAY),
        ]
    ),
    partition_by=("day",),
    keys=("queue", "fingerprint", "name", "day"),
)
WORKERS = TableSpec(
    name="gold/workers",
    schema=pa.schema(
        [
            ("queue", _TEXT),
            ("worker", _TEXT),
            ("last_report_at", _TIME),
            ("in_hand", _COUNT),
            ("heartbeats_ok", _COUNT),
            ("heartbeats_failed", _COUNT),
            ("heartbeat_failure_rate", _REAL),
            ("sweeps_done", _COUNT),
            ("sweeps_skipped", _COUNT),
            ("sweep_skip_rate", _REAL),
            ("memory_bytes", _COUNT),
        ]
    ),
    keys=("queue", "worker"),
)
ALERTS = TableSpec(
    name="gold/alerts",
    schema=pa.schema(
        [
            ("rule", _TEXT),
            ("queue", _TEXT),
            ("subject", _TEXT),  # a worker, or empty
            ("raised_at", _TIME),  # the minute, or the time of the report
            ("value", _REAL),
            ("threshold", _REAL),
            ("message", _TEXT),
        ]
    ),
    keys=("rule", "queue", "subject", "raised_at"),
)

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        EVENTS,
        JOBS,
        LOGS,
        STREAM_ENTRIES,
        DLQ_ENTRIES,
        WORKER_REPORTS,
        REJECTS,
        ATTEMPTS,
        SILVER_JOBS,
        GAPS,
        QUEUE_MINUTE,
        QUEUE_HOUR,
        ERRORS,
        WORKERS,
        ALERTS,
    )
}


def table_spec(name: str) -> TableSpec:
    """The table of that name, written with a slash or a dot."""
    spec = TABLES.get(name.replace(".", "/"))
    if spec is None:
        raise InvalidOption("table", f"there is no table {name!r}", f"one of {', '.join(TABLES)}")
    return spec
