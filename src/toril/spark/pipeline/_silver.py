"""Refine, first half: bronze events become silver attempts, gaps and jobs.

Guarantee: each bronze commit is refined once. Attempts and gaps are committed before the jobs, which hold the state
that the next batch starts from; all carry the bronze version they reach, so a batch that was cut off is finished, not
repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from toril.lake import Lake
from toril.lake._log import DataFile, TableLog
from toril.spark.pipeline._staging import frame_of, read_table, stage
from toril.spark.transforms import attempts, gaps, jobs, lives, orphans

APPLICATION: Final = "toril.refine"
_BRONZE, _ATTEMPTS, _GAPS, _JOBS = "bronze/events", "silver/attempts", "silver/gaps", "silver/jobs"

Filler = Callable[[DataFrame], DataFrame]


@dataclass(slots=True)
class SilverRefiner:
    """Moves silver on to what bronze has."""

    spark: SparkSession
    lake: Lake
    fill: Filler = lambda rows: rows  # completes attempts from job hashes
    max_rows: int = 4_000_000  # of one batch: more would not fit the memory of a small driver

    def run(self) -> int:
        """Refines until bronze holds nothing new; the result is the number of events."""
        total = 0
        while events := self.run_batch():
            total += events
        return total

    def run_batch(self) -> int:
        """One batch; 0 when there is nothing to do."""
        done, until, files = self._next()
        if until <= done:
            return 0
        if files:
            self._refine(files, until)
        else:
            self._commit(_JOBS, list, until)
        return sum(file.rows for file in files) or 1

    def _next(self) -> tuple[int, int, list[DataFile]]:
        bronze = self.lake.ensure(_BRONZE)
        done = max(self.lake.ensure(_JOBS).committed(APPLICATION), 0)
        begun = max(self.lake.ensure(name).committed(APPLICATION) for name in (_ATTEMPTS, _GAPS))
        if begun > done:
            return done, begun, bronze.added_between(done, begun)
        return done, *self._as_much_as_fits(bronze, done)

    def _as_much_as_fits(self, bronze: TableLog, done: int) -> tuple[int, list[DataFile]]:
        files: list[DataFile] = []
        until = done
        while until < bronze.version and (not files or sum(file.rows for file in files) < self.max_rows):
            until += 1
            files += bronze.added_between(until - 1, until)
        return until, files

    def _refine(self, files: list[DataFile], until: int) -> None:
        events = frame_of(self.spark, self.lake, _BRONZE, files)
        story = self._lives(events)
        try:
            self._commit(_ATTEMPTS, lambda: stage(self.fill(attempts(story)), self.lake, _ATTEMPTS), until)
            self._commit(_GAPS, lambda: stage(gaps(events), self.lake, _GAPS), until)
            self._commit(
                _JOBS, lambda: stage(jobs(story), self.lake, _JOBS), until, replaced=self._open_files()
            )
        finally:
            story.unpersist()

    def _open_files(self) -> list[DataFile]:
        return self.lake.ensure(_JOBS).files(phase="open")

    def _lives(self, events: DataFrame) -> DataFrame:
        open_jobs = frame_of(self.spark, self.lake, _JOBS, self._open_files())
        story = lives(events, open_jobs).persist(StorageLevel.MEMORY_AND_DISK)
        return self._with_second_lives(story, events)

    def _with_second_lives(self, story: DataFrame, events: DataFrame) -> DataFrame:
        """Jobs that were finished and are touched again go on from where they ended, not from nothing."""
        done_files = self.lake.ensure(_JOBS).files(phase="done")
        strangers = orphans(story).persist()
        try:
            if not done_files or strangers.isEmpty():
                return story
            before = frame_of(self.spark, self.lake, _JOBS, done_files).join(
                strangers, ["queue", "job_id"], "semi"
            )
            again = lives(events.join(strangers, ["queue", "job_id"], "semi"), _latest(before))
            others = story.join(strangers, ["queue", "job_id"], "anti")
            merged = others.unionByName(again).persist(StorageLevel.MEMORY_AND_DISK)
            merged.count()
            story.unpersist()
            return merged
        finally:
            strangers.unpersist()

    def _commit(
        self,
        name: str,
        write: Callable[[], list[DataFile]],
        until: int,
        replaced: list[DataFile] | None = None,
    ) -> None:
        log = self.lake.ensure(name)
        if log.committed(APPLICATION) < until:
            log.commit(write(), removed=replaced or [], application=APPLICATION, version=until)


def _latest(jobs_done: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    newest = Window.partitionBy("queue", "job_id").orderBy(F.desc("updated_at"), F.desc("updated_seq"))
    return jobs_done.withColumn("age", F.row_number().over(newest)).where("age = 1").drop("age")


def silver_jobs(spark: SparkSession, lake: Lake) -> DataFrame:
    """The last word on every job."""
    return _latest(read_table(spark, lake, _JOBS))
