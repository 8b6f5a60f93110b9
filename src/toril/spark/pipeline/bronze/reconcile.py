"""Reconcile: completes what is missing in a gap of the events from the hashes of the jobs.

Guarantee: a job that finished in a gap gets its last attempt, marked `source = hash`; one whose end was seen is never
touched, because the hashes take their place behind every event that they reflect, and are refined with all events
before it.

All jobs of the queues concerned are read and kept in bronze/jobs; silver is made of what is there, also by a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.bronze.snapshot_writer import ANSWER, JOBS, SnapshotWriter
from toril.spark.pipeline.bronze.snapshots import AfterGap, SnapshotTaker
from toril.spark.pipeline.engines.engine import Engine
from toril.spark.pipeline.files.lineage import GAPS, RECONCILED
from toril.spark.pipeline.files.manifest import files_in
from toril.spark.sources.jobs import list_jobs
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.readers import open_transport

_EVENTS: Final = "bronze/events"
_JOBS_PER_TASK: Final = 25_000  # a second or less of reading


@dataclass(slots=True)
class Reconciler:
    """Reads the jobs of queues in which gaps were found since its last run."""

    engine: Engine
    lake: Lake
    url: str | None = field(repr=False)
    prefix: str
    taker: SnapshotTaker
    catch_up: Callable[[], object]  # brings all events that Redis holds now to bronze

    def run(self) -> int:
        """Reads the jobs. Returns their number."""
        jobs = self.lake.ensure(JOBS)
        found, done = jobs.committed(GAPS), max(jobs.committed(RECONCILED), 0)
        if found <= done:
            return 0
        files = self._read(self._queues(done, found))
        self.catch_up()  # a hash may tell what an event says that is yet to be read
        self.taker.run(AfterGap(files, found))
        return sum(file.rows for file in files)

    def _queues(self, done: int, until: int) -> list[str]:
        notes = self.lake.ensure(_EVENTS).changes(done, until).notes
        return sorted({queue for note in notes for queue in note.get("gaps", ())})

    def _read(self, queues: list[str]) -> list[DataFile]:
        asked = self._stored_jobs(queues)
        if not asked.num_rows:
            return []
        writer = SnapshotWriter(self.lake, self.url, self.prefix, {}, with_logs=False)
        parts = 1 + asked.num_rows // _JOBS_PER_TASK
        return files_in(self.engine.each(asked, writer, ANSWER, parts=parts)["files"].to_pylist())[JOBS]

    def _stored_jobs(self, queues: list[str]) -> pa.Table:
        options = SourceOptions.parse({"table": "jobs", "prefix": self.prefix})
        rows = []
        with open_transport(self.url) as transport:
            for queue in queues:
                keys = QueueKeys(queue, self.prefix, found=True).resolve(cluster=transport.is_cluster)
                found = list_jobs(transport, keys, options)
                rows += [(queue, job.decode(errors="replace"), state) for job, state in found.items()]
        names, ids, states = zip(*rows, strict=True) if rows else ((), (), ())
        empty, none = pa.nulls(len(rows), pa.string()), pa.array([0] * len(rows), pa.int64())
        columns = [*(pa.array(one, pa.string()) for one in (names, ids, states)), none, empty, empty]
        return pa.table(columns, names=["queue", "job_id", "state", "pickups", "first_id", "last_id"])
