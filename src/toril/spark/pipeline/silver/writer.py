"""The task of refinement: the steps of some jobs become files of silver/attempts and silver/jobs.

Guarantee: a task that Spark repeats writes other files, and only those that are reported to the driver are committed.

Rows never come back to Spark: timelines are computed, completed from hashes and written in one process, and only a
line about the files is sent to the driver, with the names of jobs that must be looked up first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.files.manifest import Manifest, files_in
from toril.spark.pipeline.files.parquet_files import write_parts
from toril.spark.transforms.job_timeline import turning_points
from toril.spark.transforms.rows import Filler, attempts_table, jobs_table, lacks_start

ATTEMPTS, JOBS = "silver/attempts", "silver/jobs"
# A line about files, or a job whose timeline lacks its start.
REPORT: Final = pa.schema([("files", pa.string()), ("queue", pa.string()), ("job_id", pa.string())])


@dataclass(frozen=True, slots=True)
class SilverWriter:
    """Runs on executors, once per partition of steps."""

    lake: Lake
    fill: Filler | None  # completes attempts from job hashes
    with_attempts: bool = True  # False: they were committed before the batch was cut off
    hold_without_start: bool = False  # jobs whose timeline lacks its start are named, not written

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        if not sum(batch.num_rows for batch in rows):
            return
        points = turning_points(pa.Table.from_batches(rows).combine_chunks())
        without_start = self._without_start(points)
        known = _without(points, without_start) if len(without_start) else points
        yield _report(self._write(known), without_start)

    def _without_start(self, points: pa.Table) -> pa.Table:
        jobs = points.select(["queue", "job_id"])
        return jobs.filter(lacks_start(points)) if self.hold_without_start else jobs.slice(0, 0)

    def _write(self, points: pa.Table) -> dict[str, list[DataFile]]:
        found = {JOBS: write_parts(self.lake, JOBS, jobs_table(points, changed=True))}
        if self.with_attempts:
            found[ATTEMPTS] = write_parts(self.lake, ATTEMPTS, attempts_table(points, self.fill))
        return found


def _without(points: pa.Table, without_start: pa.Table) -> pa.Table:
    return points.join(without_start, ["queue", "job_id"], join_type="left anti")


def _report(files: Mapping[str, Sequence[DataFile]], without_start: pa.Table) -> pa.RecordBatch:
    first = pa.table(
        [[Manifest(files).to_json()], pa.nulls(1, pa.string()), pa.nulls(1, pa.string())], schema=REPORT
    )
    named = {
        "files": pa.nulls(len(without_start), pa.string()),
        **{n: without_start[n] for n in ("queue", "job_id")},
    }
    whole = pa.concat_tables([first, pa.table(named).cast(REPORT)]).combine_chunks()
    return whole.to_batches()[0]


def files_of_tasks(report: pa.Table) -> dict[str, list[DataFile]]:
    """What the tasks wrote, by table."""
    return files_in(report["files"].drop_null().to_pylist())


def jobs_without_start(report: pa.Table) -> pa.Table:
    """The jobs that were not written, because their timeline lacks its start."""
    return report.filter(pc.is_null(report["files"])).select(["queue", "job_id"])
