"""From events to lives: what each job went through, in one pass over one sort.

Guarantee: every pickup whose end is among the events becomes exactly one attempt, however the events are cut into
batches, as long as the state that one batch leaves behind is given to the next. When its beginning was lost in a gap,
the attempt has no `active_at`.

A life is the events of one job in the order of the stream, after the state in which the last batch left it. A
pickup (`active`) ends with the next event of its job; a stalled job says `waiting` and then `stalled`, in one step of
the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — how everybody writes it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, TimestampType

from toril.lake.tables import ATTEMPTS, SILVER_JOBS
from toril.spark.transforms.job_timeline import LIFE_EVENTS, STATE, walk
from toril.spark.transforms.rows import attempts_table, jobs_table

_JOB: Final = ("queue", "job_id")
# fmt: off
_POINT: Final = (  # what the functions below need of a turning point; all else would only fill the memory
    "queue string, job_id string, ts timestamp, seq long, event string, was_state string, failed_reason string, "
    "name string, attempt long, stalls long, added_at timestamp, ready_at timestamp, active_at timestamp, "
    "before_event string, late_end boolean, next_event string, next_ts timestamp, next_failed_reason string, "
    "after_next string"
)
# fmt: on


def job_timelines(events: DataFrame, open_jobs: DataFrame) -> DataFrame:
    """The turning points of every job: pickups, ends and the last event, with what was known by then and came next."""
    return steps(events, open_jobs).mapInArrow(walk, _POINT)


def steps(events: DataFrame, open_jobs: DataFrame) -> DataFrame:
    """What lives are made of, all steps of a job in one partition."""
    return _steps(events).unionByName(_carried(open_jobs)).repartition("job_id", "queue")


def _steps(events: DataFrame) -> DataFrame:
    seen = events.where(F.col("job_id").isNotNull() & F.col("event").isin(*LIFE_EVENTS))
    return seen.select(
        *_JOB,
        "ts",
        "seq",
        "event",
        "prev",
        F.col("name").alias("step_name"),
        F.col("failed_reason"),
        F.lit(None).cast(LongType()).alias("was_attempt"),
        F.lit(None).cast(LongType()).alias("was_stalls"),
        F.lit(None).cast(TimestampType()).alias("was_added_at"),
        F.lit(None).cast(TimestampType()).alias("was_ready_at"),
        F.lit(None).cast(TimestampType()).alias("was_active_at"),
        F.lit(None).cast(StringType()).alias("was_state"),
    )


def _carried(open_jobs: DataFrame) -> DataFrame:
    return open_jobs.select(
        *_JOB,
        F.col("updated_at").alias("ts"),
        F.col("updated_seq").alias("seq"),
        F.lit(STATE).alias("event"),
        F.lit(None).cast(StringType()).alias("prev"),
        F.col("name").alias("step_name"),
        F.col("error").alias("failed_reason"),
        F.col("attempt").alias("was_attempt"),
        F.col("stalls").alias("was_stalls"),
        F.col("added_at").alias("was_added_at"),
        F.col("ready_at").alias("was_ready_at"),
        F.col("active_at").alias("was_active_at"),
        F.col("state").alias("was_state"),
    )


def attempts(of: DataFrame) -> DataFrame:
    """The attempts that ended within these lives, as rows of silver/attempts."""
    return of.mapInArrow(partial(_told, attempts_table), from_arrow_schema(ATTEMPTS.schema))


def jobs(of: DataFrame) -> DataFrame:
    """The last word on each job, as rows of silver/jobs. Give the `open` ones to the next batch."""
    return of.mapInArrow(partial(_told, jobs_table), from_arrow_schema(SILVER_JOBS.schema))


def orphans(of: DataFrame) -> DataFrame:
    """Jobs whose lives begin in the middle: finished before and touched again, or their first events were lost."""
    unknown = F.col("before_event").isNull() & ~F.col("event").isin("added", STATE)
    return of.where(unknown).select(*_JOB).distinct()


def _told(
    tell: Callable[[pa.Table], pa.Table], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from tell(pa.Table.from_batches([batch])).to_batches()
