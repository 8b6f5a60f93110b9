"""The steps that write bronze: ingest, snapshots and worker reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from toril.commands.streams import StreamState
from toril.errors import InvalidOption, PipelineFailed
from toril.lake import Lake
from toril.spark.pipeline.bronze.follower import Follower
from toril.spark.pipeline.bronze.ingest import BronzeWriter, reader_of
from toril.spark.pipeline.bronze.ingest_once import ingest_once
from toril.spark.pipeline.bronze.query_ingest import QueryIngest
from toril.spark.pipeline.bronze.queue_entries import EntryCollector
from toril.spark.pipeline.bronze.snapshots import SnapshotTaker
from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position, note_starts
from toril.spark.pipeline.bronze.worker_reports import ReportCollector
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.checkpoint import remove_orphan_checksums
from toril.spark.pipeline.session import in_pool
from toril.spark.pipeline.supervisor.spark_errors import cause_of
from toril.spark.sources.positions import end_of, read_stream_states
from toril.spark.sources.readers import stream_keys

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

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
    _note_starts(context)
    reader = reader_of(context.source_options())
    try:
        ingest_once(context.engine, reader, BronzeWriter(context.lake))
    finally:
        reader.stop()


def new_ingest(context: PipelineContext) -> Ingest:
    """Returns what keeps bronze/events up to date while the pipeline is up."""
    if context.options.checkpoint is None:
        return Follower(context.source_options(), context.options.interval, lambda: _note_starts(context))
    return QueryIngest(context.sessions.session, lambda: start_ingest(context))


def start_ingest(context: PipelineContext, *, once: bool = False) -> StreamingQuery:
    """Starts the streaming query that writes bronze/events, with the user's checkpoint."""
    options, spark = context.options, context.sessions.session()
    if options.checkpoint is None:
        raise InvalidOption("checkpoint", "is missing", "name the folder that the query keeps")
    remove_orphan_checksums(options.checkpoint)
    _note_starts(context)
    stream = spark.readStream.format("toril_ingest").options(**context.source_options()).load()
    writer = stream.writeStream.foreachBatch(BronzeWriter(context.lake)).queryName("toril_ingest")
    writer = writer.option("checkpointLocation", options.checkpoint)
    interval = f"{int(options.interval * 1000)} milliseconds"
    with in_pool(spark, "toril_ingest"):
        timed = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=interval)
        return timed.start()


def _note_starts(context: PipelineContext) -> None:
    """With `starting="latest"`, commits the present ends of new queues, so that later runs start there, too."""
    if context.options.starting == "latest":
        options = context.options
        lake = Lake(options.lake, options.storage_options)  # ingest runs on a thread of its own
        ends = {queue: end_of(state) for queue, state in stream_states(context).items()}
        note_starts(lake, ends)


def stream_states(context: PipelineContext) -> dict[str, StreamState]:
    """The event streams as they are in Redis now."""
    with context.connect() as transport:
        return read_stream_states(transport, stream_keys(context.queue_discovery().queues(transport)))


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
