"""Ingest by a streaming query of Spark, for pipelines with a checkpoint named by the user.

Guarantee: as for every query, what was committed is in the checkpoint; the tables hold the positions all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from toril.errors import PipelineFailed
from toril.spark.pipeline.bronze.query_listener import IngestListener
from toril.spark.pipeline.supervisor.spark_errors import cause_of

_LOOK: Final = 0.1  # seconds


class QueryIngest:
    """Runs the query on the thread that calls `run`, and listens to it."""

    def __init__(self, spark: Callable[[], Any], start: Callable[[], Any]) -> None:
        self._spark = spark
        self._start = start
        self._listener = IngestListener("toril_ingest")

    @property
    def batches(self) -> int:
        return self._listener.progress.batches

    def run(self, stop: threading.Event, on_sign: Callable[[], object]) -> None:
        """Runs until `stop` is set. If the query ends before, that is an error."""
        streams = self._spark().streams
        streams.addListener(self._listener)
        query = self._start()
        progress = self.batches
        while query.isActive and not stop.is_set():
            if self.batches > progress:
                progress = self.batches
                on_sign()
            stop.wait(_LOOK)
        if stop.is_set():
            query.stop()
            streams.removeListener(self._listener)
            return
        problem = query.exception()
        raise PipelineFailed(cause_of(problem) if problem else "the query ended by itself")

    def close(self) -> None:
        """Does nothing: no resource is held between two runs."""
