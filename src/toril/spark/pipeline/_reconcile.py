"""Reconcile: what a gap in the events hides, told by the hashes of the jobs.

Guarantee: a job that finished in a gap gets its last attempt, marked `source = hash`; one whose end was seen is never
touched, because the comparison waits until silver holds every event that is older than the snapshot of the hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from toril.lake import Lake
from toril.spark.pipeline._silver import silver_jobs
from toril.spark.pipeline._staging import frame_of, stage

APPLICATION: Final = "toril.reconcile"
_GAPS, _ATTEMPTS, _JOBS, _SNAPSHOTS = "silver/gaps", "silver/attempts", "silver/jobs", "bronze/jobs"
_JOB: Final = ["queue", "job_id"]


@dataclass(slots=True)
class Reconciler:
    """Fills gaps that were found since it last ran."""

    spark: SparkSession
    lake: Lake
    read_jobs: Callable[[list[str]], DataFrame]  # the jobs of some queues, from Redis
    catch_up: Callable[[], object]  # moves silver on to all events that Redis holds now

    def run(self) -> int:
        """The number of jobs whose end was found in their hashes."""
        gaps_log = self.lake.ensure(_GAPS)
        done, until = max(self.lake.ensure(_JOBS).committed(APPLICATION), 0), gaps_log.version
        fresh = gaps_log.added_between(done, until) if until > done else []
        if not fresh:
            return 0
        gaps = frame_of(self.spark, self.lake, _GAPS, fresh).groupBy("queue").count().collect()
        snapshot = self._take_snapshot([row.queue for row in gaps], until)
        self.catch_up()
        return self._fill(snapshot, until)

    def _take_snapshot(self, queues: list[str], until: int) -> DataFrame:
        log = self.lake.ensure(_SNAPSHOTS)
        files = stage(self.read_jobs(queues), self.lake, _SNAPSHOTS)
        log.commit(files, application=APPLICATION, version=until)
        return frame_of(self.spark, self.lake, _SNAPSHOTS, files)

    def _fill(self, snapshot: DataFrame, until: int) -> int:
        ended = snapshot.where(F.col("state").isin("completed", "failed") & F.col("finished_at").isNotNull())
        seen = silver_jobs(self.spark, self.lake).where("phase = 'done'").select(*_JOB)
        hidden = ended.join(seen, _JOB, "anti").persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = hidden.count()
            self._commit_attempts(hidden, until)
            self._commit_jobs(hidden, until)
        finally:
            hidden.unpersist()
        return found

    def _commit_attempts(self, hidden: DataFrame, until: int) -> None:
        log = self.lake.ensure(_ATTEMPTS)
        if log.committed(APPLICATION) < until:
            log.commit(
                stage(attempts_of(hidden), self.lake, _ATTEMPTS), application=APPLICATION, version=until
            )

    def _commit_jobs(self, hidden: DataFrame, until: int) -> None:
        log = self.lake.ensure(_JOBS)
        open_files = log.files(phase="open")
        still_open = frame_of(self.spark, self.lake, _JOBS, open_files).join(
            hidden.select(*_JOB), _JOB, "anti"
        )
        rows = still_open.unionByName(jobs_of(hidden))
        files = stage(rows, self.lake, _JOBS)
        log.commit(files, removed=open_files, application=APPLICATION, version=until)


def attempts_of(hashes: DataFrame) -> DataFrame:
    """The last attempt of each finished job, as far as its hash tells."""
    first = F.coalesce(F.col("attempts_started"), F.lit(1)) <= 1
    ready = F.timestamp_millis(F.unix_millis("added_at") + F.coalesce(F.col("delay_ms"), F.lit(0)))
    wait = F.greatest(F.unix_millis("processed_at") - F.unix_millis(ready), F.lit(0))
    return hashes.select(
        *_JOB,
        "name",
        F.greatest(F.coalesce(F.col("attempts_started"), F.lit(1)), F.lit(1)).alias("attempt"),
        "added_at",
        F.when(first, ready).alias("ready_at"),
        F.col("processed_at").alias("active_at"),
        F.col("finished_at").alias("ended_at"),
        F.col("state").alias("outcome"),
        F.when(first, wait).alias("wait_ms"),
        (F.unix_millis("finished_at") - F.unix_millis("processed_at")).alias("run_ms"),
        F.when(F.col("state") == "failed", F.col("failed_reason")).alias("error"),
        "worker",
        F.lit("hash").alias("source"),
        F.to_date("finished_at").alias("day"),
    )


def jobs_of(hashes: DataFrame) -> DataFrame:
    """The last word on each finished job, as far as its hash tells."""
    return hashes.select(
        *_JOB,
        "name",
        "state",
        F.greatest(F.coalesce(F.col("attempts_started"), F.lit(1)), F.lit(1)).alias("attempt"),
        F.coalesce(F.col("stalled"), F.lit(0)).alias("stalls"),
        "added_at",
        F.lit(None).cast("timestamp").alias("ready_at"),
        F.col("processed_at").alias("active_at"),
        "finished_at",
        F.col("finished_at").alias("updated_at"),
        F.lit(0).cast("long").alias("updated_seq"),
        F.when(F.col("state") == "failed", F.col("failed_reason")).alias("error"),
        F.lit("done").alias("phase"),
    )
