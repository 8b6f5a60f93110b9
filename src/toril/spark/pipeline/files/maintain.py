"""Maintain: removes old rows, compacts small files and removes unused ones.

Guarantee: readers are not affected; a file is removed only when it has been unused for the configured time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from toril.lake import TABLES, Lake
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.retention import Kept, Retention, parse_keep

_MANY_FILES: Final = 20  # below that, compacting costs more than it brings
_LARGE_BYTES: Final = 128 * 1024 * 1024
# Files that no commit names were left by a driver that was killed, or belong to a step at work, which takes less.
_LONGEST_STEP_HOURS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What was done to one table."""

    table: str
    compacted: int  # files that were put together
    removed: int  # files that were deleted
    expired: int = 0  # rows that were older than the table keeps


@dataclass(slots=True)
class Maintainer:
    """Compacts and vacuums all tables of a lake."""

    lake: Lake
    keep_hours: float
    keep: Kept = field(default_factory=dict)

    def run(self) -> list[Maintained]:
        expired = Retention(self.lake, self.keep).run()
        existing = set(self.lake.tables())
        return [self._maintain(name, expired.get(name, 0)) for name in TABLES if name in existing]

    def _maintain(self, name: str, expired: int) -> Maintained:
        log = self.lake.table(name)
        compacted = 0
        if len(log.files()) >= _MANY_FILES:
            metrics = log.delta.optimize.compact(target_size=_LARGE_BYTES)
            compacted = int(metrics.get("numFilesRemoved", 0))
        removed = log.delta.vacuum(
            retention_hours=int(self.keep_hours),
            enforce_retention_duration=False,
            dry_run=False,
            full=self.keep_hours >= _LONGEST_STEP_HOURS,
        )
        log.delta.create_checkpoint()
        log.refresh()
        return Maintained(table=name, compacted=compacted, removed=len(removed), expired=expired)


def maintain(context: PipelineContext) -> list[Maintained]:
    """Compacts and vacuums the tables of a pipeline."""
    options = context.options
    return Maintainer(context.lake, options.keep_files_hours, parse_keep(options.keep)).run()


def maintain_tables(context: PipelineContext) -> int:
    """As above, as a step. Returns the number of tables."""
    return len(maintain(context))
