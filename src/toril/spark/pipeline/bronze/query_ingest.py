"""Ingest by a streaming query of Spark, for pipelines with a checkpoint named by the user.

Guarantee: as for every query, what was committed is in the checkpoint; the tables hold the positions all the same.
While Spark starts or is down, the follower reads instead: events are not trimmed meanwhile. While the query runs, the
follower reads ahead of its commits: what the query had read and not committed when it ended is still there. Whoever
commits second adds only what is new (`BronzeWriter`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from toril.errors import InvalidOption, PipelineFailed
from toril.spark.pipeline.bronze.follower import Follower
from toril.spark.pipeline.bronze.ingest import BronzeWriter
from toril.spark.pipeline.bronze.query_listener import IngestListener
from toril.spark.pipeline.bronze.start_positions import commit_starts
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.checkpoint import remove_orphan_checksums
from toril.spark.pipeline.session import in_pool
from toril.spark.pipeline.supervisor.spark_errors import cause_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("toril.pipeline")
_NAME: Final = "toril_ingest"  # of the query, its source and its pool
_POLL_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 1.0  # after an error of the follower


class QueryIngest:
    """Runs the query on the thread that calls `run`, and listens to it."""

    def __init__(self, context: PipelineContext) -> None:
        self._context = context
        self._listener = IngestListener(_NAME)
        self._batches_before = 0  # of earlier runs
        self._substitute = _Substitute(Follower(context))

    @property
    def batches(self) -> int:
        return self._batches_before + self._listener.progress.batches + self._substitute.batches

    def run(self, stop: threading.Event, on_sign: Callable[[], object]) -> None:
        """Runs until `stop` is set. If the query ends before, that is an error."""
        commit_starts(self._context)
        self._substitute.start()
        try:
            self._run(stop, on_sign)
        except Exception:
            self._substitute.start()  # at once: it is some seconds until the next run
            raise

    def _run(self, stop: threading.Event, on_sign: Callable[[], object]) -> None:
        streams = self._context.sessions.session().streams
        streams.addListener(self._new_listener())
        try:
            self._watch(start_ingest(self._context), stop, on_sign)
        finally:
            with suppress(Exception):  # Java may have ended
                streams.removeListener(self._listener)

    def _new_listener(self) -> IngestListener:
        """PySpark binds a listener to a Java process: that of an earlier run may have ended."""
        self._batches_before += self._listener.progress.batches
        self._listener = IngestListener(_NAME)
        return self._listener

    def _watch(self, query: StreamingQuery, stop: threading.Event, on_sign: Callable[[], object]) -> None:
        seen = 0
        while query.isActive and not stop.is_set():
            if self._listener.progress.batches > seen:
                seen = self._listener.progress.batches
                self._substitute.stand_by()
                on_sign()
            stop.wait(_POLL_SECONDS)
        if stop.is_set():
            query.stop()
            return
        problem = query.exception()
        raise PipelineFailed(cause_of(problem) if problem else "the query ended by itself")

    def close(self) -> None:
        self._substitute.close()


def start_ingest(context: PipelineContext, *, once: bool = False) -> StreamingQuery:
    """Starts the streaming query that writes bronze/events, with the user's checkpoint."""
    options, spark = context.options, context.sessions.session()
    if options.checkpoint is None:
        raise InvalidOption("checkpoint", "is missing", "name the folder that the query keeps")
    remove_orphan_checksums(options.checkpoint)
    commit_starts(context)
    stream = spark.readStream.format(_NAME).options(**context.source_options()).load()
    writer = stream.writeStream.foreachBatch(BronzeWriter(context.lake)).queryName(_NAME)
    writer = writer.option("checkpointLocation", options.checkpoint)
    interval = f"{int(options.interval * 1000)} milliseconds"
    with in_pool(spark, _NAME):
        timed = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)
        return timed.start()


class _Substitute:
    """The follower on a thread of its own, while there is no query that reads."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def batches(self) -> int:
        return self._follower.batches

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="toril-follower", daemon=True)
            self._thread.start()

    def stand_by(self) -> None:
        """Commits nothing, and keeps what the query has not committed."""
        self._end_thread()
        try:
            self._follower.stand_by()
        except Exception as error:  # the query goes on by itself
            _log.warning("events could not be read ahead: %s", cause_of(error))

    def close(self) -> None:
        self._end_thread()
        self._follower.close()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follower.run(self._stop, lambda: None)
            except Exception as error:  # a server that is away now may be back later
                _log.warning("events could not be read while Spark starts: %s", cause_of(error))
                self._stop.wait(_PAUSE_SECONDS)
