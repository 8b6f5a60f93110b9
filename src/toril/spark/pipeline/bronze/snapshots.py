"""Snapshots: hashes and log lines of jobs whose attempts ended, to bronze/jobs and bronze/logs.

Guarantee: bronze holds a hash before silver uses it. Each range of commits of bronze/events brings one snapshot of each
job that ended an attempt in it, whatever is killed or repeated: the version that was reached is committed with the
rows, log lines first. A job that was removed meanwhile has none, and a hash that belongs to a later use of the same id
is not taken.

The whole hash and the log lines are kept of jobs that ended; of a job that is retried, the fields about the
attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from toril.lake import Lake
from toril.lake.delta_table import Changes, DataFile
from toril.spark.pipeline.bronze.snapshot_writer import JOBS, LOGS, SnapshotWriter
from toril.spark.pipeline.bronze.stream_positions import SEQ_BITS, positions_in
from toril.spark.pipeline.bronze.stream_positions import TABLE as EVENTS
from toril.spark.pipeline.files.lineage import GAPS, HASHES, RECONCILED, REFINED, reached
from toril.spark.pipeline.files.manifest import files_in
from toril.spark.pipeline.files.staging import frame_of
from toril.spark.transforms.step_columns import TIMELINE_EVENTS

_SILVER: Final = "silver/jobs"
_JOB: Final = ["queue", "job_id"]
_EVENTS_PER_TASK: Final = 100_000  # their jobs are read in a second or less


@dataclass(frozen=True, slots=True)
class AfterGap:
    """All jobs of queues with gaps, as they were read after them: files that are yet to be committed."""

    files: list[DataFile]
    version: int  # of bronze/events: gaps up to it are looked after


@dataclass(slots=True)
class SnapshotTaker:
    """Brings bronze/jobs up to date with bronze/events."""

    spark: SparkSession
    lake: Lake
    url: str | None = field(repr=False)
    prefix: str
    which: str = "all"  # failed: only jobs with an attempt that did not complete; none: no job
    max_rows: int = 4_000_000  # events of one range

    def run(self, after_gap: AfterGap | None = None) -> int:
        """The number of snapshots. `after_gap` is committed with the last range."""
        taken, goal = 0, self.lake.ensure(EVENTS).version
        while (until := self._next(goal)) is not None:
            taken += self._take_range(until, after_gap if until == goal else None)
            after_gap = None if until == goal else after_gap
        return taken + self._take_range(goal, after_gap) if after_gap is not None else taken

    def _marks(self) -> list[int]:
        return [self.lake.ensure(name).committed(HASHES) for name in (LOGS, JOBS)]

    def _done(self) -> int:
        """How far both tables are. Where no snapshot was taken before, silver has refined without them."""
        marks = self._marks()
        return max(min(marks), 0) if max(marks) >= 0 else max(self.lake.ensure(_SILVER).committed(REFINED), 0)

    def _next(self, goal: int) -> int | None:
        """A range that one table has and the other lacks comes first: it was cut off, or a table was rolled back."""
        done, begun = self._done(), max(self._marks())
        if begun > done:
            return begun
        return None if done >= goal else self._as_much_as_fits(done, goal)

    def _as_much_as_fits(self, done: int, goal: int) -> int:
        events, until, rows = self.lake.ensure(EVENTS), done, 0
        while until < goal and (not rows or rows < self.max_rows):
            until += 1
            rows += events.changes(until - 1, until).rows
        return until

    def _take_range(self, until: int, after_gap: AfterGap | None) -> int:
        changes = self.lake.ensure(EVENTS).changes(self._done(), until)
        files = files_in([])
        if changes.files and self.which != "none":
            files = self._read(changes, with_logs=self._lacks(LOGS, until))
        if self._lacks(LOGS, until):
            self._commit(LOGS, files[LOGS], until, {})
        if after_gap is None and not self._lacks(JOBS, until):
            return 0
        self._commit(JOBS, files[JOBS], until, _gaps_in(changes, until), after_gap)
        return sum(file.rows for file in files[JOBS])

    def _lacks(self, name: str, until: int) -> bool:
        return self.lake.ensure(name).committed(HASHES) < until

    def _commit(
        self,
        name: str,
        files: list[DataFile],
        until: int,
        marks: Mapping[str, int],
        after_gap: AfterGap | None = None,
    ) -> None:
        marks = {**marks, **reached(self.lake.ensure(EVENTS), HASHES, until)}
        if after_gap is not None:
            files, marks = [*files, *after_gap.files], {**marks, RECONCILED: after_gap.version}
        self.lake.ensure(name).commit(files, application=HASHES, version=until, marks=marks)

    def _read(self, changes: Changes, *, with_logs: bool) -> dict[str, list[DataFile]]:
        writer = SnapshotWriter(
            self.lake, self.url, self.prefix, positions_in(changes.marks), with_logs=with_logs
        )
        events = frame_of(self.spark, self.lake, EVENTS, changes.files)
        jobs = jobs_to_snapshot(events, everything=self.which == "all").repartition(
            1 + changes.rows // _EVENTS_PER_TASK
        )
        report: Any = jobs.mapInArrow(writer, "files string").toArrow()
        return files_in(report["files"].to_pylist())


def _gaps_in(changes: Changes, until: int) -> dict[str, int]:
    return {GAPS: until} if any(note.get("gaps") for note in changes.notes) else {}


def jobs_to_snapshot(events: DataFrame, *, everything: bool) -> DataFrame:
    """Jobs that ended an attempt in these events since they were last added, and what is known of them."""
    # Numbers, not structs and strings: their aggregation needs no sorting.
    names = F.lit(list(TIMELINE_EVENTS))
    place = F.shiftleft(F.unix_millis("ts"), SEQ_BITS) + F.col("seq")
    steps = events.where(F.col("job_id").isNotNull() & F.col("event").isin(*TIMELINE_EVENTS))

    def when(condition: Column) -> Column:
        return F.when(condition, place)

    event = F.col("event")
    back = event.isin("waiting", "waiting-children") & F.coalesce(F.col("prev") == "active", F.lit(False))
    jobs = steps.groupBy(*_JOB).agg(
        F.min(place).alias("first"),
        F.max(place).alias("last"),
        F.max_by(F.array_position(names, event), place).alias("code"),
        F.max(when(event == "added")).alias("added"),
        F.min(when(event == "active")).alias("active"),
        F.count_if(event == "active").alias("pickups"),
        F.max(when(event == "delayed")).alias("delayed"),
        F.max(when(back | event.isin("failed", "stalled"))).alias("unfinished"),
        F.max(when(event == "completed")).alias("completed"),
    )
    jobs = jobs.withColumn("event", F.element_at(names, F.col("code").cast("int")))
    # A job that is added with a delay says `delayed`, too: only one that was taken ends an attempt by it.
    retried = F.when(F.col("added").isNull() | (F.col("active") < F.col("delayed")), F.col("delayed"))
    ended = (
        F.greatest("unfinished", retried, "completed") if everything else F.greatest("unfinished", retried)
    )
    of_this_timeline = F.col("added").isNull() | (ended > F.col("added"))
    return jobs.where(ended.isNotNull() & of_this_timeline & (F.col("event") != "removed")).select(
        *_JOB, *_snapshot_columns()
    )


def _snapshot_columns() -> list[Column]:
    """The state by the events, the pickups that the hash must count at least, and the events that it is read for."""
    whole_timeline = F.col("added").isNull() | (F.col("added") == F.col("first"))
    return [
        F.when(F.col("event").isin("added", "stalled"), "waiting").otherwise(F.col("event")).alias("state"),
        F.when(whole_timeline, F.col("pickups")).otherwise(F.lit(0)).alias("pickups"),
        _id(F.coalesce("added", "first")).alias("first_id"),
        _id(F.col("last")).alias("last_id"),
    ]


def _id(place: Column) -> Column:
    return F.concat_ws("-", F.shiftright(place, SEQ_BITS), place.bitwiseAND(F.lit((1 << SEQ_BITS) - 1)))
