"""From events to lives: what each job went through, in one pass over one sort.

Guarantee: every pickup whose end is among the events becomes exactly one attempt, however the events are cut into
batches, as long as the state that one batch leaves behind is given to the next. When its beginning was lost in a gap,
the attempt has no `active_at`.

A life is the events of one job in the order of the stream, after the state in which the last batch left it. A
pickup (`active`) ends with the next event of its job; a stalled job says `waiting` and then `stalled`, in one step of
the server.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 — how everybody writes it
from pyspark.sql.types import LongType, StringType, TimestampType

from toril.spark.transforms._walk import ENDS, LIFE_EVENTS, STATE, walk

_DONE: Final = ("completed", "failed", "removed")
_JOB: Final = ("queue", "job_id")
# fmt: off
_POINT: Final = (  # what the functions below need of a turning point; all else would only fill the memory
    "queue string, job_id string, ts timestamp, seq long, event string, was_state string, failed_reason string, "
    "name string, attempt long, stalls long, added_at timestamp, ready_at timestamp, active_at timestamp, "
    "before_event string, late_end boolean, next_event string, next_ts timestamp, next_failed_reason string, "
    "after_next string"
)
# fmt: on


def lives(events: DataFrame, open_jobs: DataFrame) -> DataFrame:
    """The turning points of every job: pickups, ends and the last event, with what was known by then and came next."""
    steps = _steps(events).unionByName(_carried(open_jobs))
    return steps.repartition("job_id", "queue").mapInArrow(walk, _POINT)


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


def _ended() -> Column:
    event = F.col("event")
    running = (event == "active") | ((event == STATE) & (F.col("was_state") == "active"))
    seen = running & F.col("next_event").isin(*ENDS)
    return F.coalesce(seen, F.lit(False)) | F.col("late_end")


def _is_last() -> Column:
    return F.col("next_event").isNull()


def _begins_in_the_middle() -> Column:
    return F.col("before_event").isNull() & ~F.col("event").isin("added", STATE)


def attempts(of: DataFrame) -> DataFrame:
    """The attempts that ended within these lives, as rows of silver/attempts."""
    late = F.col("late_end")
    ended = of.where(_ended()).select(
        "*",
        F.when(late, F.col("event")).otherwise(F.col("next_event")).alias("end"),
        F.when(late, F.col("next_event")).otherwise(F.col("after_next")).alias("then"),
        F.when(late, F.col("ts")).otherwise(F.col("next_ts")).alias("ended_at"),
        F.when(late, F.col("failed_reason")).otherwise(F.col("next_failed_reason")).alias("reason"),
        F.when(~late, F.col("ready_at")).alias("was_ready"),
        F.when(~late, F.col("active_at")).alias("was_active"),
    )
    return ended.select(
        *_JOB,
        "name",
        "attempt",
        "added_at",
        F.col("was_ready").alias("ready_at"),
        F.col("was_active").alias("active_at"),
        "ended_at",
        _outcome().alias("outcome"),
        _ms_between(F.col("was_ready"), F.col("was_active")).alias("wait_ms"),
        _ms_between(F.col("was_active"), F.col("ended_at")).alias("run_ms"),
        F.when(F.col("end") == "failed", F.col("reason")).alias("error"),
        F.lit(None).cast(StringType()).alias("worker"),
        F.lit("events").alias("source"),
        F.to_date("ended_at").alias("day"),
    )


def _outcome() -> Column:
    end, then = F.col("end"), F.col("then")
    return (
        F.when(end.isin("completed", "failed"), end)
        .when((end == "stalled") | ((end == "waiting") & (then == "stalled")), F.lit("stalled"))
        .when(end == "waiting-children", F.lit("suspended"))
        .otherwise(F.lit("retried"))
    )


def _ms_between(start: Column, end: Column) -> Column:
    return F.unix_millis(end) - F.unix_millis(start)


def jobs(of: DataFrame) -> DataFrame:
    """The last word on each job, as rows of silver/jobs. Give the `open` ones to the next batch."""
    last = of.where(_is_last())
    state = _state()
    done = state.isin(*_DONE)
    return last.select(
        *_JOB,
        "name",
        state.alias("state"),
        "attempt",
        "stalls",
        "added_at",
        "ready_at",
        "active_at",
        F.when(done, F.col("ts")).alias("finished_at"),
        F.col("ts").alias("updated_at"),
        F.col("seq").alias("updated_seq"),
        F.when((F.col("event") == "failed") | (F.col("event") == STATE), F.col("failed_reason")).alias(
            "error"
        ),
        F.when(done, F.lit("done")).otherwise(F.lit("open")).alias("phase"),
    )


def _state() -> Column:
    event = F.col("event")
    return (
        F.when(event == STATE, F.col("was_state"))
        .when(event.isin("added", "stalled"), F.lit("waiting"))
        .otherwise(event)
    )


def orphans(of: DataFrame) -> DataFrame:
    """Jobs whose lives begin in the middle: finished before and touched again, or their first events were lost."""
    return of.where(_begins_in_the_middle()).select(*_JOB).distinct()
