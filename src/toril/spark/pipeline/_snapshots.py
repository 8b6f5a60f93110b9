"""Snapshots: the hash and the log lines of every job that ended, to bronze/jobs and bronze/logs.

Guarantee: each end that silver knows brings one snapshot, whatever is killed or repeated: the version of silver/jobs
that was reached is committed with the rows, log lines first. A job that was removed meanwhile has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from toril.lake import Lake
from toril.lake.delta_table import DataFile, LakeTable
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline._manifest import files_of, line_of
from toril.spark.pipeline._staging import frame_of, read_table, write_file
from toril.spark.sources.jobs import JobChunk, read_jobs, read_logs
from toril.spark.sources.readers import open_transport

JOBS, LOGS, _ENDED = "bronze/jobs", "bronze/logs", "silver/jobs"
_JOB: Final = ["queue", "job_id"]
_JOBS_PER_TASK: Final = 25_000  # a second or less of reading
_LINE: Final = pa.schema([("files", pa.string())])


@dataclass(frozen=True, slots=True)
class SnapshotWriter:
    """Reads jobs and writes files; runs on executors."""

    lake: Lake
    url: str | None = field(repr=False)
    prefix: str
    with_logs: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            found = self._read(pa.Table.from_batches(rows))
            files = {name: self._write(name, tables) for name, tables in found.items()}
            yield pa.RecordBatch.from_pydict({"files": [line_of(files)]}, schema=_LINE)

    def _read(self, jobs: pa.Table) -> dict[str, list[pa.Table]]:
        found: dict[str, list[pa.Table]] = {JOBS: [], LOGS: []}
        with open_transport(self.url) as transport:
            for queue in pc.unique(jobs["queue"]).to_pylist():
                chunk = self._chunk(queue, jobs, cluster=transport.is_cluster)
                found[JOBS] += read_jobs(transport, chunk)
                if self.with_logs:
                    found[LOGS] += read_logs(transport, chunk)
        return found

    def _chunk(self, queue: str, jobs: pa.Table, *, cluster: bool) -> JobChunk:
        some = jobs.filter(pc.equal(jobs["queue"], queue))
        return JobChunk(
            queue=queue,
            keys=QueueKeys(queue, self.prefix).resolve(cluster=cluster),
            ids=tuple(one.encode() for one in some["job_id"].to_pylist()),
            states=tuple(some["state"].to_pylist()),
        )

    def _write(self, name: str, tables: Sequence[pa.Table]) -> list[DataFile]:
        full = [table for table in tables if table.num_rows]
        return [write_file(self.lake, name, pa.concat_tables(full), {})] if full else []


@dataclass(slots=True)
class SnapshotTaker:
    """Takes snapshots of the jobs that ended since it last ran."""

    spark: SparkSession
    lake: Lake
    url: str | None = field(repr=False)
    prefix: str
    everything: bool = True  # False: only jobs that failed

    def run(self) -> int:
        """The number of snapshots."""
        done, until = self._next()
        if until <= done:
            return 0
        wanted = self._wanted(done, until)
        files = self._take(wanted, until) if wanted is not None else files_of([])
        for name in (LOGS, JOBS):
            log = self.lake.ensure(name)
            if log.committed(self._application) < until:
                log.commit(files[name], application=self._application, version=until)
        return sum(file.rows for file in files[JOBS])

    @property
    def _ends(self) -> LakeTable:
        return self.lake.ensure(_ENDED)

    @property
    def _application(self) -> str:
        # A silver that was built anew counts its versions anew.
        return f"toril.snapshots/{self._ends.delta.metadata().id}"

    def _next(self) -> tuple[int, int]:
        done = max(self.lake.ensure(JOBS).committed(self._application), 0)
        begun = self.lake.ensure(LOGS).committed(self._application)
        return done, begun if begun > done else self._ends.version

    def _wanted(self, done: int, until: int) -> DataFrame | None:
        added = self._ends.added_between(done, until)
        files = [file for file in added if file.partition.get("phase") == "done"]
        if not files:
            return None
        ended = frame_of(self.spark, self.lake, _ENDED, files).where("state <> 'removed'")
        if not self.everything:
            ended = ended.where("state = 'failed'")
        latest = ended.groupBy(*_JOB).agg(
            F.max_by("state", "updated_at").alias("state"), F.max("finished_at").alias("finished_at")
        )
        fresh = latest if done else self._without_known(latest)
        return fresh.repartition(1 + sum(file.rows for file in files) // _JOBS_PER_TASK)

    def _without_known(self, ended: DataFrame) -> DataFrame:
        """After a replay silver begins anew: what has a snapshot that is younger than its end needs no other."""
        if not self.lake.ensure(JOBS).files():
            return ended
        taken = (
            read_table(self.spark, self.lake, JOBS).groupBy(*_JOB).agg(F.max("snapshot_at").alias("taken_at"))
        )
        both = ended.join(taken, _JOB, "left")
        return both.where("taken_at is null or taken_at < finished_at").drop("taken_at")

    def _take(self, wanted: DataFrame, until: int) -> dict[str, list[DataFile]]:
        with_logs = self.lake.ensure(LOGS).committed(self._application) < until
        writer = SnapshotWriter(self.lake, self.url, self.prefix, with_logs=with_logs)
        report: Any = wanted.select(*_JOB, "state").mapInArrow(writer, "files string").toArrow()
        return files_of(report["files"].to_pylist())
