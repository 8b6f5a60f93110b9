"""Refine, first half: bronze events and hashes become silver attempts, gaps and jobs.

Guarantee: each bronze commit is refined once, and from bronze alone. Attempts and gaps are committed before the jobs,
which hold the state that the next batch starts from; all carry the bronze versions they reach, so a batch that was
interrupted is completed, not repeated.

Hashes are committed for a range of events after it (`bronze/snapshots.py`), so a batch is a number of such ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.engines.engine import Engine, Query, Rows
from toril.spark.pipeline.files.lineage import (
    FILLED,
    HASHES,
    RECONCILED,
    REFINED,
    REFINED_HASHES,
    reached,
)
from toril.spark.pipeline.options import FILLS
from toril.spark.pipeline.silver.hash_enrichment import HashEnricher
from toril.spark.pipeline.silver.writer import REPORT, SilverWriter, files_of_tasks, jobs_without_start
from toril.spark.transforms import gold_sql
from toril.spark.transforms.rows import Filler
from toril.spark.transforms.step_sql import AFTER_GAP, steps_after_gap_sql, steps_of_named_sql, steps_sql

EVENTS, HASHED = "bronze/events", "bronze/jobs"
ATTEMPTS, GAPS, JOBS = "silver/attempts", "silver/gaps", "silver/jobs"
_JOB: Final = ("job_id", "queue")


@dataclass(frozen=True, slots=True)
class RefinedUpTo:
    """How far bronze is refined, or is to be: the versions of its events and of its hashes."""

    events: int
    hashes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is refined at once, and the marks of the commits that it ends in."""

    events: Rows
    hashes: Rows | None
    application: str
    version: int  # a batch is done where a table has this version of the application
    marks: Mapping[str, int]
    after_gap: bool = False  # among the hashes are those of whole queues, read after a gap
    has_gaps: bool = True  # whether gap rows may be among the events


@dataclass(slots=True)
class SilverRefiner:
    """Brings silver up to date with bronze."""

    engine: Engine
    lake: Lake
    filled: str = "none"  # which attempts are completed from job hashes: all, failed, none
    max_rows: int = 4_000_000  # of one batch: more would not fit the memory of a small driver

    @property
    def fill(self) -> Filler | None:
        return None if self.filled == "none" else HashEnricher(everything=self.filled == "all")

    def run(self) -> int:
        """Refines what bronze holds now; the result is the number of events."""
        total, goal = 0, self.lake.ensure(HASHED).version  # not what comes meanwhile: it might never end
        while (reach := self._next(goal)) is not None:
            total += self._refine_to(reach)
        return total

    def _refined_versions(self, *names: str) -> RefinedUpTo:
        marks = [
            [max(self.lake.ensure(name).committed(mark), 0) for name in names]
            for mark in (REFINED, REFINED_HASHES)
        ]
        return RefinedUpTo(max(marks[0]), max(marks[1]))

    def _next(self, goal: int) -> RefinedUpTo | None:
        done, begun = self._refined_versions(JOBS), self._refined_versions(ATTEMPTS, GAPS)
        if begun.hashes > done.hashes:
            return begun
        return self._as_much_as_fits(done, goal)

    def _as_much_as_fits(self, done: RefinedUpTo, goal: int) -> RefinedUpTo | None:
        """Ranges of events whose hashes are there, as long as they are few enough, and one in any case."""
        found, rows = None, 0
        events, hashes = self.lake.ensure(EVENTS), self.lake.ensure(HASHED)
        for version in range(done.hashes + 1, goal + 1):
            mark = hashes.changes(version - 1, version).marks.get(HASHES)
            if mark is None:  # compacted
                continue
            before = found.events if found else done.events
            rows += events.changes(before, mark).rows
            if found is not None and rows > self.max_rows:
                break
            found = RefinedUpTo(max(mark, before), version)
        return found

    def _refine_to(self, reach: RefinedUpTo) -> int:
        done = self._refined_versions(JOBS)
        events = self.lake.ensure(EVENTS).changes(done.events, reach.events)
        hashes = self.lake.ensure(HASHED).changes(done.hashes, reach.hashes)
        if not events.files and not hashes.files:
            self._pass_over(reach)
            return 0
        batch = Batch(
            Rows(lake=self.lake, table=EVENTS, files=events.files),
            Rows(lake=self.lake, table=HASHED, files=hashes.files) if hashes.files else None,
            REFINED_HASHES,
            reach.hashes,
            self.marks_of(reach),
            after_gap=RECONCILED in hashes.marks,
            has_gaps=any(note.get("gaps") for note in events.notes),
        )
        self.refine(batch)
        return events.rows

    def _pass_over(self, reach: RefinedUpTo) -> None:
        """Commits that brought no rows are noted as refined, without Spark."""
        marks = self.marks_of(reach)
        for name in (ATTEMPTS, GAPS, JOBS):
            log = self.lake.ensure(name)
            if log.committed(REFINED_HASHES) < reach.hashes:
                log.commit([], application=REFINED_HASHES, version=reach.hashes, marks=marks)

    def marks_of(self, reach: RefinedUpTo) -> dict[str, int]:
        events, hashes = self.lake.ensure(EVENTS), self.lake.ensure(HASHED)
        marks = {**reached(events, REFINED, reach.events), **reached(hashes, REFINED_HASHES, reach.hashes)}
        return {**marks, FILLED: FILLS.index(self.filled)}

    def refine(self, batch: Batch) -> None:
        """One batch, from the state that the last one left behind."""
        if batch.hashes is not None and self.fill is None:
            batch = replace(batch, hashes=batch.hashes.limited(AFTER_GAP))
        open_files = self.lake.ensure(JOBS).files(phase="open")
        with ThreadPoolExecutor(1) as beside:
            lost = beside.submit(self._stage_gaps, batch)
            written = self._write_timelines(batch, open_files)
            found = lost.result()
        self._commit(ATTEMPTS, written[ATTEMPTS], batch)
        self._commit(GAPS, found, batch)
        self._commit(JOBS, written[JOBS], batch, replaced=open_files)

    def _stage_gaps(self, batch: Batch) -> list[DataFile]:
        if not batch.has_gaps or not self._is_uncommitted(GAPS, batch):
            return []
        query = Query(sql=lambda _: gold_sql.GAPS, tables={"events": batch.events})
        return self.engine.write(query, self.lake, GAPS)

    def _write_timelines(self, batch: Batch, open_files: list[DataFile]) -> dict[str, list[DataFile]]:
        done_files = self.lake.ensure(JOBS).files(phase="done")
        writer = SilverWriter(
            self.lake,
            self.fill,
            with_attempts=self._is_uncommitted(ATTEMPTS, batch),
            hold_without_start=bool(done_files),
        )
        report = self._write(writer, self._query(batch, self._jobs(open_files), self._jobs(done_files)))
        written, without_start = files_of_tasks(report), jobs_without_start(report)
        if without_start.num_rows:
            for name, files in self._write_continued(writer, batch, without_start, done_files).items():
                written[name] += files
        return written

    def _jobs(self, files: list[DataFile]) -> Rows:
        return Rows(lake=self.lake, table=JOBS, files=files)

    def _query(self, batch: Batch, open_jobs: Rows, done_jobs: Rows) -> Query:
        """The steps of a batch, also of jobs that ended before and were read after a gap: they may have ended again."""
        tables: dict[str, Rows | pa.Table] = {"events": batch.events, "open_jobs": open_jobs}
        if batch.hashes is None:
            return Query(sql=partial(steps_sql, with_hashes=False), tables=tables)
        tables["hashes"] = batch.hashes
        if batch.after_gap and done_jobs.files:
            return Query(sql=steps_after_gap_sql, tables={**tables, "done_jobs": done_jobs})
        return Query(sql=partial(steps_sql, with_hashes=True), tables=tables)

    def _write_continued(
        self, writer: SilverWriter, batch: Batch, without_start: pa.Table, done_files: list[DataFile]
    ) -> dict[str, list[DataFile]]:
        """Jobs that were finished and are touched again go on from where they ended, not from nothing."""
        tables: dict[str, Rows | pa.Table] = {
            "events": batch.events,
            "named": without_start,
            "done_jobs": self._jobs(done_files),
        }
        if batch.hashes is not None:
            tables["hashes"] = batch.hashes
        query = Query(sql=partial(steps_of_named_sql, with_hashes=batch.hashes is not None), tables=tables)
        return files_of_tasks(self._write(replace(writer, hold_without_start=False), query))

    def _write(self, writer: SilverWriter, query: Query) -> pa.Table:
        return self.engine.run(query, writer, REPORT, by=_JOB)

    def _is_uncommitted(self, name: str, batch: Batch) -> bool:
        return self.lake.ensure(name).committed(batch.application) < batch.version

    def _commit(
        self, name: str, files: list[DataFile], batch: Batch, replaced: Sequence[DataFile] = ()
    ) -> None:
        if self._is_uncommitted(name, batch):
            self.lake.ensure(name).commit(
                files,
                removed=replaced,
                application=batch.application,
                version=batch.version,
                marks=batch.marks,
            )
