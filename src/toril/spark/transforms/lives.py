"""From events to lives: what each job went through, in one pass over one sort.

Guarantee: every pickup whose end is among the events becomes exactly one attempt, however the events are cut into
batches, as long as the state that one batch leaves behind is given to the next.

A life is the events of one job in the order of the stream, after the state in which the last batch left it. A
pickup (`active`) ends with the next event of its job; a stalled job says `waiting` and then `stalled`, in one step of
the server.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 — how everybody writes it
from pyspark.sql.types import LongType, StringType, TimestampType

STATE: Final = "toril.state"  # the pseudo-event that carries a job over from the last batch
_ENDS: Final = ("completed", "failed", "waiting", "delayed", "waiting-children", "stalled")
_LIFE_EVENTS: Final = ("added", "active", "removed", *_ENDS)
_DONE: Final = ("completed", "failed", "removed")
_JOB: Final = ("queue", "job_id")


def lives(events: DataFrame, open_jobs: DataFrame) -> DataFrame:
    """Every event of every job that has news, with what was known of the job by then and what came next."""
    return _along(_steps(events).unionByName(_carried(open_jobs)))


def _steps(events: DataFrame) -> DataFrame:
    seen = events.where(F.col("job_id").isNotNull() & F.col("event").isin(*_LIFE_EVENTS))
    return seen.select(
        *_JOB,
        "ts",
        "seq",
        "event",
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
        F.col("name").alias("step_name"),
        F.col("error").alias("failed_reason"),
        F.col("attempt").alias("was_attempt"),
        F.col("stalls").alias("was_stalls"),
        F.col("added_at").alias("was_added_at"),
        F.col("ready_at").alias("was_ready_at"),
        F.col("active_at").alias("was_active_at"),
        F.col("state").alias("was_state"),
    )


def _along(steps: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*_JOB).orderBy("ts", "seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    event = F.col("event")
    pickups = F.sum(F.when(event == "active", 1).when(event == STATE, F.col("was_attempt")).otherwise(0))
    stalls = F.sum(F.when(event == "stalled", 1).when(event == STATE, F.col("was_stalls")).otherwise(0))
    known = steps.select(
        "*",
        pickups.over(so_far).alias("pickups"),
        stalls.over(so_far).alias("stalls"),
        _latest("step_name", so_far).alias("name"),
        _latest(F.when(event == "added", F.col("ts")).otherwise(F.col("was_added_at")), so_far).alias(
            "added_at"
        ),
        _latest(
            F.when(event.isin("waiting", "added"), F.col("ts")).otherwise(F.col("was_ready_at")), so_far
        ).alias("ready_at"),
        _latest(F.when(event == "active", F.col("ts")).otherwise(F.col("was_active_at")), so_far).alias(
            "active_at"
        ),
        F.lag("event").over(in_order).alias("before"),
        *(
            F.lead(column, 1).over(in_order).alias(f"next_{column}")
            for column in ("event", "ts", "failed_reason")
        ),
        F.lead("event", 2).over(in_order).alias("after_next"),
    )
    return known.select("*", _numbered(so_far).alias("attempt"))


def _latest(value: str | Column, frame: WindowSpec) -> Column:
    return F.last(value, ignorenulls=True).over(frame)


def _numbered(so_far: WindowSpec) -> Column:
    """Pickups since the job was last added: an id that is used again starts again."""
    before_added = F.max(F.when(F.col("event") == "added", F.col("pickups"))).over(so_far)
    return F.col("pickups") - F.coalesce(before_added, F.lit(0))


def attempts(of: DataFrame) -> DataFrame:
    """The attempts that ended within these lives, as rows of silver/attempts."""
    running = (F.col("event") == "active") | ((F.col("event") == STATE) & (F.col("was_state") == "active"))
    ended = of.where(running & F.col("next_event").isin(*_ENDS))
    ended_at = F.col("next_ts")
    return ended.select(
        *_JOB,
        "name",
        "attempt",
        "added_at",
        "ready_at",
        "active_at",
        ended_at.alias("ended_at"),
        _outcome().alias("outcome"),
        _ms_between(F.col("ready_at"), F.col("active_at")).alias("wait_ms"),
        _ms_between(F.col("active_at"), ended_at).alias("run_ms"),
        F.when(F.col("next_event") == "failed", F.col("next_failed_reason")).alias("error"),
        F.lit(None).cast(StringType()).alias("worker"),
        F.lit("events").alias("source"),
        F.to_date(ended_at).alias("day"),
    )


def _outcome() -> Column:
    following, then = F.col("next_event"), F.col("after_next")
    return (
        F.when(following.isin("completed", "failed"), following)
        .when((following == "stalled") | ((following == "waiting") & (then == "stalled")), F.lit("stalled"))
        .when(following == "waiting-children", F.lit("suspended"))
        .otherwise(F.lit("retried"))
    )


def _ms_between(start: Column, end: Column) -> Column:
    return F.unix_millis(end) - F.unix_millis(start)


def jobs(of: DataFrame) -> DataFrame:
    """The last word on each job, as rows of silver/jobs. Give the `open` ones to the next batch."""
    last = of.where(F.col("next_event").isNull())
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
    first = of.where(F.col("before").isNull() & ~F.col("event").isin("added", STATE))
    return first.select(*_JOB).distinct()
