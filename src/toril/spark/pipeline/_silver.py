"""Refine, first half: bronze events become silver attempts, gaps and jobs.

Guarantee: each bronze commit is refined once. Attempts and gaps are committed before the jobs, which hold the state
that the next batch starts from; all carry the bronze version they reach, so a batch that was cut off is finished, not
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from toril.lake import Lake
from toril.lake.delta_table import DataFile, LakeTable
from toril.spark.pipeline._silver_writer import (
    REPORT,
    Filler,
    SilverWriter,
    files_in,
    strangers_in,
    unchanged,
)
from toril.spark.pipeline._staging import frame_of, read_table, stage
from toril.spark.transforms import gaps
from toril.spark.transforms.timelines import steps

APPLICATION: Final = "toril.refine"
_BRONZE, _ATTEMPTS, _GAPS, _JOBS = "bronze/events", "silver/attempts", "silver/gaps", "silver/jobs"
_JOB: Final = ["queue", "job_id"]


@dataclass(slots=True)
class SilverRefiner:
    """Moves silver on to what bronze has."""

    spark: SparkSession
    lake: Lake
    fill: Filler = unchanged  # completes attempts from job hashes
    max_rows: int = 4_000_000  # of one batch: more would not fit the memory of a small driver

    def run(self) -> int:
        """Refines what bronze holds now; the result is the number of events."""
        total, goal = 0, self.lake.ensure(_BRONZE).version  # not what comes meanwhile: it might never end
        while events := self.run_batch(goal):
            total += events
        return total

    def run_batch(self, goal: int) -> int:
        """One batch, up to a version of bronze; 0 when there is nothing to do."""
        done, until, files = self._next(goal)
        if until <= done:
            return 0
        if files:
            self._refine(files, until)
        else:
            self._commit(_JOBS, [], until)
        return sum(file.rows for file in files) or 1

    def _next(self, goal: int) -> tuple[int, int, list[DataFile]]:
        bronze = self.lake.ensure(_BRONZE)
        done = max(self.lake.ensure(_JOBS).committed(APPLICATION), 0)
        begun = max(self.lake.ensure(name).committed(APPLICATION) for name in (_ATTEMPTS, _GAPS))
        if begun > done:
            return done, begun, bronze.added_between(done, begun)
        return done, *self._as_much_as_fits(bronze, done, goal)

    def _as_much_as_fits(self, bronze: LakeTable, done: int, goal: int) -> tuple[int, list[DataFile]]:
        files: list[DataFile] = []
        until = done
        while until < goal and (not files or sum(file.rows for file in files) < self.max_rows):
            until += 1
            files += bronze.added_between(until - 1, until)
        return until, files

    def _refine(self, files: list[DataFile], until: int) -> None:
        events = frame_of(self.spark, self.lake, _BRONZE, files)
        open_files = self.lake.ensure(_JOBS).files(phase="open")
        with ThreadPoolExecutor(1) as beside:
            lost = beside.submit(self._stage_gaps, events, until)
            written = self._write_lives(events, open_files, until)
            found = lost.result()
        self._commit(_ATTEMPTS, written[_ATTEMPTS], until)
        self._commit(_GAPS, found, until)
        self._commit(_JOBS, written[_JOBS], until, replaced=open_files)

    def _stage_gaps(self, events: DataFrame, until: int) -> list[DataFile]:
        return stage(gaps(events), self.lake, _GAPS) if self._lacks(_GAPS, until) else []

    def _write_lives(
        self, events: DataFrame, open_files: list[DataFile], until: int
    ) -> dict[str, list[DataFile]]:
        done_files = self.lake.ensure(_JOBS).files(phase="done")
        writer = SilverWriter(
            self.lake, self.fill, with_attempts=self._lacks(_ATTEMPTS, until), hold_strangers=bool(done_files)
        )
        open_jobs = frame_of(self.spark, self.lake, _JOBS, open_files)
        report = _write(writer, events, open_jobs)
        written, strangers = files_in(report), strangers_in(report)
        if strangers.num_rows:
            for name, files in self._write_second_lives(writer, events, strangers, done_files).items():
                written[name] += files
        return written

    def _write_second_lives(
        self, writer: SilverWriter, events: DataFrame, strangers: pa.Table, done_files: list[DataFile]
    ) -> dict[str, list[DataFile]]:
        """Jobs that were finished and are touched again go on from where they ended, not from nothing."""
        named = self.spark.createDataFrame(strangers)
        before = frame_of(self.spark, self.lake, _JOBS, done_files).join(named, _JOB, "semi")
        touched = events.join(named, _JOB, "semi")
        return files_in(_write(replace(writer, hold_strangers=False), touched, _latest(before)))

    def _lacks(self, name: str, until: int) -> bool:
        return self.lake.ensure(name).committed(APPLICATION) < until

    def _commit(
        self, name: str, files: list[DataFile], until: int, replaced: Sequence[DataFile] = ()
    ) -> None:
        if self._lacks(name, until):
            self.lake.ensure(name).commit(files, removed=replaced, application=APPLICATION, version=until)


def _write(writer: SilverWriter, events: DataFrame, jobs_before: DataFrame) -> pa.Table:
    return steps(events, jobs_before).mapInArrow(writer, REPORT).toArrow()


def _latest(jobs_done: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    newest = Window.partitionBy("queue", "job_id").orderBy(F.desc("updated_at"), F.desc("updated_seq"))
    return jobs_done.withColumn("age", F.row_number().over(newest)).where("age = 1").drop("age")


def silver_jobs(spark: SparkSession, lake: Lake) -> DataFrame:
    """The last word on every job."""
    return _latest(read_table(spark, lake, _JOBS))
