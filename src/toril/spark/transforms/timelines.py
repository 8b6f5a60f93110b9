"""From events to job timelines, in one pass over one sort.

Guarantee: every pickup whose end is among the events becomes exactly one attempt, however the events are cut into
batches, as long as the state that one batch leaves behind is given to the next. When its beginning was lost in a gap,
the attempt has no `active_at`.

A timeline is the events of one job in the order of the stream, after the state in which the last batch left it. A
pickup (`active`) ends with the next event of its job; a stalled job has `waiting` and then `stalled`, in one step of
the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from toril.lake.tables import ATTEMPTS, SILVER_JOBS
from toril.spark.transforms.dialect import SPARK
from toril.spark.transforms.job_timeline import timelines_of_partition
from toril.spark.transforms.rows import attempts_table, jobs_table
from toril.spark.transforms.step_columns import HASH, POINT, STATE
from toril.spark.transforms.step_sql import CARRIED, steps_sql

_JOB: Final = ("queue", "job_id")


def job_timelines(events: DataFrame, open_jobs: DataFrame, hashes: DataFrame | None = None) -> DataFrame:
    """The turning points of every job: pickups, ends and the last event, with what was known by then and came next.

    `hashes` are rows of bronze/jobs that were read for these events.
    """
    return steps(events, open_jobs, hashes).mapInArrow(timelines_of_partition, from_arrow_schema(POINT))


def steps(events: DataFrame, open_jobs: DataFrame, hashes: DataFrame | None = None) -> DataFrame:
    """The steps of timelines, all steps of a job in one partition."""
    # Whoever brings rows of their own may know less.
    carried = [name for name in CARRIED if name in open_jobs.columns]
    frames = {"events": events, "open_jobs": open_jobs, **({} if hashes is None else {"hashes": hashes})}
    sql = steps_sql(SPARK, with_hashes=hashes is not None, carried=carried)
    return events.sparkSession.sql(sql, None, **frames).repartition("job_id", "queue")


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
