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
from functools import partial
from typing import Final

from toril.lake import Lake
from toril.lake.delta_table import Changes, DataFile
from toril.spark.pipeline.bronze.snapshot_writer import ANSWER, JOBS, LOGS, SnapshotWriter
from toril.spark.pipeline.bronze.stream_positions import TABLE as EVENTS
from toril.spark.pipeline.bronze.stream_positions import positions_in
from toril.spark.pipeline.engines.engine import Engine, Query, Rows
from toril.spark.pipeline.files.lineage import GAPS, HASHES, RECONCILED, REFINED, reached
from toril.spark.pipeline.files.manifest import files_in
from toril.spark.transforms.snapshot_sql import ended_jobs_sql

_SILVER: Final = "silver/jobs"
_EVENTS_PER_TASK: Final = 100_000  # their jobs are read in a second or less


@dataclass(frozen=True, slots=True)
class AfterGap:
    """All jobs of queues with gaps, as they were read after them: files that are yet to be committed."""

    files: list[DataFile]
    version: int  # of bronze/events: gaps up to it are looked after


@dataclass(slots=True)
class SnapshotTaker:
    """Brings bronze/jobs up to date with bronze/events."""

    engine: Engine
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

    def _committed_versions(self) -> list[int]:
        return [self.lake.ensure(name).committed(HASHES) for name in (LOGS, JOBS)]

    def _done(self) -> int:
        """How far both tables are. Where no snapshot was taken before, silver has refined without them."""
        marks = self._committed_versions()
        return max(min(marks), 0) if max(marks) >= 0 else max(self.lake.ensure(_SILVER).committed(REFINED), 0)

    def _next(self, goal: int) -> int | None:
        """A range that one table has and the other lacks comes first: it was cut off, or a table was rolled back."""
        done, begun = self._done(), max(self._committed_versions())
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
            files = self._read(changes, with_logs=self._is_uncommitted(LOGS, until))
        if self._is_uncommitted(LOGS, until):
            self._commit(LOGS, files[LOGS], until, {})
        if after_gap is None and not self._is_uncommitted(JOBS, until):
            return 0
        self._commit(JOBS, files[JOBS], until, _gaps_in(changes, until), after_gap)
        return sum(file.rows for file in files[JOBS])

    def _is_uncommitted(self, name: str, until: int) -> bool:
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
        query = Query(
            sql=partial(ended_jobs_sql, everything=self.which == "all"),
            tables={"events": Rows(lake=self.lake, table=EVENTS, files=changes.files)},
        )
        parts = 1 + changes.rows // _EVENTS_PER_TASK
        return files_in(self.engine.run(query, writer, ANSWER, parts=parts)["files"].to_pylist())


def _gaps_in(changes: Changes, until: int) -> dict[str, int]:
    return {GAPS: until} if any(note.get("gaps") for note in changes.notes) else {}
