"""The steps that write bronze: ingest, snapshots and worker reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from toril.errors import PipelineFailed
from toril.spark.pipeline.bronze.follower import Follower
from toril.spark.pipeline.bronze.ingest import BronzeWriter, reader_of
from toril.spark.pipeline.bronze.ingest_once import ingest_once
from toril.spark.pipeline.bronze.query_ingest import QueryIngest, start_ingest
from toril.spark.pipeline.bronze.queue_entries import EntryCollector
from toril.spark.pipeline.bronze.snapshots import SnapshotTaker
from toril.spark.pipeline.bronze.start_positions import commit_starts, stream_states
from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position
from toril.spark.pipeline.bronze.worker_reports import ReportCollector
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.supervisor.spark_errors import cause_of

if TYPE_CHECKING:
    from toril.spark.pipeline.supervisor.supervisor import Ingest

_CATCH_UP_SECONDS: Final = 60.0


def ingest(context: PipelineContext) -> int:
    """Commits the events that Redis holds now to bronze; with a checkpoint of the user, by a query that keeps it."""
    try:
        if context.options.checkpoint is None:
            _ingest_directly(context)
        else:
            start_ingest(context, once=True).awaitTermination()
    except PySparkException as error:
        raise PipelineFailed(f"events could not be read: {cause_of(error)}") from error
    return 0


def _ingest_directly(context: PipelineContext) -> None:
    commit_starts(context)
    reader = reader_of(context.source_options())
    try:
        ingest_once(context.engine, reader, BronzeWriter(context.lake))
    finally:
        reader.stop()


def new_ingest(context: PipelineContext) -> Ingest:
    """Returns what keeps bronze/events up to date while the pipeline is up."""
    if context.options.checkpoint is None:
        return Follower(context)
    return QueryIngest(context)


def snapshot_taker(context: PipelineContext) -> SnapshotTaker:
    options = context.options
    return SnapshotTaker(context.engine, context.lake, context.redis, options.prefix, options.snapshots)


def take_snapshots(context: PipelineContext) -> int:
    """Commits hashes and logs of jobs, entries and dead letters to bronze. Returns their number."""
    entries = _entry_collector(context).run() if context.options.streams else 0
    return entries + snapshot_taker(context).run()


def _entry_collector(context: PipelineContext) -> EntryCollector:
    if context.entry_collector is None:
        searches = {kind: context.entry_discovery(kind) for kind in ("stream", "list")}
        context.entry_collector = EntryCollector(
            lambda: context.engine, context.lake, context.redis, searches, context.connect
        )
    return context.entry_collector


def collect_reports(context: PipelineContext) -> int:
    """Commits new worker reports to bronze."""
    if context.report_collector is None:
        discovery = context.queue_discovery()
        context.report_collector = ReportCollector(context.lake, discovery, context.connect)
    context.report_collector.run()
    return 0


def catch_up(context: PipelineContext) -> None:
    """Returns when bronze has all events that Redis holds now."""
    if context.is_ingesting:
        _await_ingest(context)
    else:
        ingest(context)


def _await_ingest(context: PipelineContext) -> None:
    goals = {queue: state.added for queue, state in stream_states(context).items()}
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while time.monotonic() < deadline and not context.stopping.is_set():
        if all(_has_read(context, queue, goal) for queue, goal in goals.items()):
            return
        context.stopping.wait(context.options.interval)
    raise PipelineFailed("events came faster than they were read: gaps are reconciled later")


def _has_read(context: PipelineContext, queue: str, goal: int | None) -> bool:
    read = committed_position(context.lake.ensure(TABLE), queue).n
    return goal is None or (read is not None and read >= goal)
