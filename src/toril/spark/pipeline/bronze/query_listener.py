"""Progress of the ingest query, from Spark's own listener.

Guarantee: listening does not affect the query: the callbacks only store the last values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener


@dataclass(slots=True)
class QueryProgress:
    """The last progress that the query reported."""

    batches: int = 0
    last_batch: int = -1
    last_seconds: float = 0.0
    terminated: int = 0
    error: str | None = None


class IngestListener(StreamingQueryListener):
    """Listens to the queries of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.progress = QueryProgress()

    def onQueryStarted(self, event: object) -> None:
        """Nothing to note."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        if progress.name == self.name:
            self.progress.batches += 1
            self.progress.last_batch = progress.batchId
            self.progress.last_seconds = progress.durationMs.get("triggerExecution", 0) / 1000

    def onQueryIdle(self, event: object) -> None:
        """Nothing to note."""

    def onQueryTerminated(self, event: Any) -> None:
        self.progress.terminated += 1
        if event.exception:
            self.progress.error = str(event.exception).partition("\n")[0]
