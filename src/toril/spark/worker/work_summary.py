"""What a `SparkWorker` has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSummary:
    """Counts of one run. Jobs of a Spark task that died are not counted: another one ran them again."""

    completed: int = 0
    failed: int = 0  # for good
    restarts: int = 0  # Spark jobs or queries that failed and were started again

    def plus(self, other: WorkSummary) -> WorkSummary:
        return WorkSummary(
            completed=self.completed + other.completed,
            failed=self.failed + other.failed,
            restarts=self.restarts + other.restarts,
        )
