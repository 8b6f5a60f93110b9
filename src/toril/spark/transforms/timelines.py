"""From events to job timelines, in one pass over one sort.

Guarantee: every pickup whose end is among the events becomes exactly one attempt, however the events are cut into
batches, as long as the state that one batch leaves behind is given to the next. When its beginning was lost in a gap,
the attempt has no `active_at`.

A timeline is the events of one job in the order of the stream, after the state in which the last batch left it. A
pickup (`active`) ends with the next event of its job; a stalled job has `waiting` and then `stalled`, in one step of
the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from toril.lake.tables import ATTEMPTS, SILVER_JOBS
from toril.spark.transforms.job_timeline import timelines_of_partition
from toril.spark.transforms.rows import attempts_table, jobs_table
from toril.spark.transforms.step_columns import FILL, HASH, POINT, STATE, STEP, TALLIES, TIMELINE_EVENTS

_JOB: Final = ("queue", "job_id")


def job_timelines(events: DataFrame, open_jobs: DataFrame, hashes: DataFrame | None = None) -> DataFrame:
    """The turning points of every job: pickups, ends and the last event, with what was known by then and came next.

    `hashes` are rows of bronze/jobs that were read for these events.
    """
    return steps(events, open_jobs, hashes).mapInArrow(timelines_of_partition, from_arrow_schema(POINT))


def steps(events: DataFrame, open_jobs: DataFrame, hashes: DataFrame | None = None) -> DataFrame:
    """The steps of timelines, all steps of a job in one partition."""
    rows = _steps(events).unionByName(_carried(open_jobs))
    if hashes is not None:
        rows = rows.unionByName(_read(hashes))
    return rows.repartition("job_id", "queue")


def _step(rows: DataFrame, columns: Mapping[str, str | Column]) -> DataFrame:
    """Rows with the columns of a step; those that are not given are empty."""
    given = {name: F.col(one) if isinstance(one, str) else one for name, one in columns.items()}
    whole = {field.name: (given.get(field.name, F.lit(None)), from_arrow_type(field.type)) for field in STEP}
    return rows.select(*(column.cast(kind).alias(name) for name, (column, kind) in whole.items()))


def _steps(events: DataFrame) -> DataFrame:
    seen = events.where(F.col("job_id").isNotNull() & F.col("event").isin(*TIMELINE_EVENTS))
    same = (*_JOB, "ts", "seq", "event", "prev", "failed_reason")
    return _step(seen, {**{name: name for name in same}, "step_name": "name"})


def _carried(open_jobs: DataFrame) -> DataFrame:
    counts = ("state", "attempt", "stalls", *TALLIES, "added_at", "ready_at", "active_at", "finished_at")
    return _step(
        open_jobs,
        {
            **{name: name for name in _JOB},
            "ts": "updated_at",
            "seq": "updated_seq",
            "event": F.lit(STATE),
            "step_name": "name",
            "failed_reason": "error",
            # Whoever brings rows of their own may know less.
            **{f"was_{name}": name for name in counts if name in open_jobs.columns},
        },
    )


def _read(hashes: DataFrame) -> DataFrame:
    """Hashes at the place of the last event that they were read with."""
    after_gap = F.col("first_event_id").isNull()
    ended = F.col("state").isin("completed", "failed") & F.col("finished_at").isNotNull()
    useful = hashes.where(F.col("last_event_id").isNotNull() & (~after_gap | ended))
    since, last = _place("first_event_id"), _place("last_event_id")
    return _step(
        useful,
        {
            **{name: name for name in _JOB},
            "ts": last[0],
            "seq": last[1],
            "event": F.when(after_gap, HASH).otherwise(FILL),
            "step_name": "name",
            "failed_reason": "failed_reason",
            "was_state": "state",
            "was_attempt": "attempts_started",
            "was_stalls": "stalled",
            "was_added_at": "added_at",
            "was_active_at": "processed_at",
            "was_finished_at": "finished_at",
            "since_ts": since[0],
            "since_seq": since[1],
            "hash": _facts(),
        },
    )


def _place(column: str) -> tuple[Column, Column]:
    ms, seq = (F.split_part(column, F.lit("-"), F.lit(part)).cast("long") for part in (1, 2))
    return F.timestamp_millis(ms), seq


def _facts() -> Column:
    """The fields of a hash about attempts, as JSON; no other field is sent."""
    has_failed = F.col("failed_reason").isNotNull() | F.col("stacktrace").isNotNull()
    facts = {
        "state": F.col("state"),
        "worker": F.col("worker"),
        "started": F.col("attempts_started"),
        "made": F.col("attempts_made"),
        "stalled": F.col("stalled"),
        "delay": F.col("delay_ms"),
        "processed": F.unix_millis("processed_at"),
        "finished": F.unix_millis("finished_at"),
        "reason": F.col("failed_reason"),
        "traces": F.col("stacktrace"),
        "trace_limit": F.when(has_failed, F.get_json_object("opts", "$.stackTraceLimit").try_cast("long")),
        "backoff": F.when(has_failed, F.coalesce(_backoff() > 0, F.lit(False))),
    }
    return F.to_json(F.struct(*(column.alias(name) for name, column in facts.items())))


def _backoff() -> Column:
    """The option is a number of milliseconds, or has one as its delay."""
    delay, number = (F.get_json_object("opts", path) for path in ("$.backoff.delay", "$.backoff"))
    return F.coalesce(delay, number).try_cast("double")


def attempts(of: DataFrame) -> DataFrame:
    """The attempts that ended within these timelines, as rows of silver/attempts."""
    return of.mapInArrow(partial(_converted, attempts_table), from_arrow_schema(ATTEMPTS.schema))


def jobs(of: DataFrame) -> DataFrame:
    """The last state of each job, as rows of silver/jobs. Give the `open` ones to the next batch."""
    return of.mapInArrow(partial(_converted, jobs_table), from_arrow_schema(SILVER_JOBS.schema))


def orphans(of: DataFrame) -> DataFrame:
    """Jobs whose timeline lacks its start: finished before and touched again, or their first events were lost."""
    unknown = F.col("before_event").isNull() & ~F.col("event").isin("added", STATE, HASH)
    return of.where(unknown).select(*_JOB).distinct()


def _converted(
    convert: Callable[[pa.Table], pa.Table], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from convert(pa.Table.from_batches([batch])).to_batches()
