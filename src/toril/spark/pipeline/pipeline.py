"""`Pipeline`: Redis → bronze → silver → gold, once or for ever.

Guarantee: `run_once` leaves the tables as of the moment it began, or later; run again after any interruption, it goes
on where the tables end, without doubling or missing a row.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toril.errors import InvalidOption, RedisError
from toril.lake import Lake
from toril.spark.pipeline.options import PipelineOptions, Summary
from toril.spark.sources.first_contact import demand_server, reach, url_for
from toril.spark.sources.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toril.commands.streams import StreamState
    from toril.spark.pipeline.bronze.queue_entries import EntryCollector
    from toril.spark.pipeline.bronze.snapshots import SnapshotTaker
    from toril.spark.pipeline.bronze.worker_reports import ReportCollector
    from toril.spark.pipeline.silver.refiner import SilverRefiner
    from toril.spark.pipeline.supervisor.sessions import SessionSource
    from toril.spark.pipeline.supervisor.supervisor import Ingest
    from toril.spark.sources.discovery import Directory
    from toril.transport import BlockingTransport

_log = logging.getLogger("toril.pipeline")
_TRIES: Final = 3  # of a step whose commit another pipeline forestalled


class Pipeline:
    """The whole way of the data. `spark=None` makes a local session when one is needed."""

    def __init__(self, options: PipelineOptions | None = None, *, spark: SparkSession | None = None) -> None:
        self.options = options or PipelineOptions()
        self.lake = Lake(self.options.lake, self.options.storage_options)
        self._sessions = self._session_source(spark)
        self._collector: ReportCollector | None = None
        self._stopping = threading.Event()
        self._is_ingesting = False

    def _session_source(self, spark: SparkSession | None) -> SessionSource:
        from toril.spark.pipeline.supervisor.sessions import SessionSource

        return SessionSource(
            spark,
            self.options.master,
            lambda master: demand_server(master, self.options.redis),
            spark_log=self.options.spark_log,
        )

    @property
    def spark(self) -> SparkSession:
        """The pipeline's own session, started when it is first asked for."""
        return self._sessions.session()

    def drop_dead_spark(self) -> str | None:
        """What Spark's Java process died of, if it did; `spark` then starts another."""
        return self._sessions.drop_if_dead()

    @functools.cached_property
    def redis(self) -> str:
        """The address of the server, the same for the driver and all tasks; refused if it cannot be chosen."""
        return url_for(self._sessions.master, self.options.redis)

    # --- running ---------------------------------------------------------------------------------------------

    def run_once(self) -> Summary:
        """Everything that is in Redis now, through to gold."""
        reach(self.redis)  # said at once, not by Spark when it has started at last
        self.check()
        self._say_what_matches_nothing()
        return self._timed(self._steps())

    def _say_what_matches_nothing(self) -> None:
        """A name or pattern without a queue is mostly a slip; the pipeline goes on, for the queue may come."""
        with self._connect() as transport:
            lost = {"queues": self._directory().unmatched(transport)}
            if self.options.streams not in ("", "*"):
                lists, streams = (
                    self._stream_directory(kind).unmatched(transport) for kind in ("list", "stream")
                )
                lost["streams"] = [name for name in lists if name in streams]
            prefixes = {"queues": self.options.prefix, "streams": self.options.stream_prefix}
            for option, names in lost.items():
                if names:
                    words = ", ".join(map(repr, names))
                    where = f"under prefix {prefixes[option]!r} at {transport.address.label}"
                    _log.warning(
                        "%s: no queue matches %s %s; check name, prefix and server", option, words, where
                    )

    def _say_if_reachable(self) -> None:
        with suppress(RedisError):  # ingest says it, and goes on when the server is back
            reach(self.redis)
            self._say_what_matches_nothing()

    def check(self) -> None:
        """Raises `TableRolledBack` when a table holds less than what was made of it."""
        from toril.spark.pipeline.files.lineage import check_layers

        check_layers(self.lake)

    def _timed(self, named: Sequence[tuple[str, Callable[[], int]]]) -> Summary:
        began = time.monotonic()
        steps: dict[str, float] = {}
        events = 0
        for name, step in named:
            started = time.monotonic()
            done = self._explained(name, step)
            events += done if name == "silver" else 0
            steps[name] = round(time.monotonic() - started, 3)
        return Summary(events=events, seconds=time.monotonic() - began, steps=steps)

    def _explained(self, name: str, step: Callable[[], int]) -> int:
        """An error of Spark in one line: pages of Java, or a refused connection to it, would hide its cause."""
        try:
            return _again_on_conflict(step)
        except Exception as error:
            from pyspark.errors import PySparkException

            from toril.errors import PipelineFailed
            from toril.spark.pipeline.supervisor.spark_errors import cause_of

            if reason := self._sessions.drop_if_dead(patience=1.0):
                raise PipelineFailed(f"{name}: {reason}; the tables are whole, run it again") from error
            if isinstance(error, PySparkException):
                raise PipelineFailed(f"{name}: {cause_of(error)}") from error
            raise

    def _steps(self) -> list[tuple[str, Callable[[], int]]]:
        return [
            ("ingest", self.ingest),
            ("silver", self.refine),
            ("reconcile", self.reconcile),
            ("snapshots", self.take_snapshots),
            ("reports", self.collect_reports),
            ("gold", self.gold),
        ]

    def ingest(self) -> int:
        """What Redis holds now, to bronze; with a checkpoint of the user's, by a query that keeps it."""
        from pyspark.errors import PySparkException

        from toril.errors import PipelineFailed
        from toril.spark.pipeline.supervisor.spark_errors import cause_of

        try:
            if self.options.checkpoint is None:
                self._ingest_directly()
            else:
                self.start_ingest(once=True).awaitTermination()
        except PySparkException as error:
            raise PipelineFailed(f"events could not be read: {cause_of(error)}") from error
        return 0

    def _ingest_directly(self) -> None:
        from toril.spark.pipeline.bronze.ingest import BronzeWriter, reader_of
        from toril.spark.pipeline.bronze.ingest_once import ingest_once

        self._note_starts()
        reader = reader_of(self._source_options())
        try:
            ingest_once(self._sessions.on_demand, reader, BronzeWriter(self.lake))
        finally:
            reader.stop()

    def new_ingest(self) -> Ingest:
        """What keeps bronze up to date while the pipeline is up."""
        from toril.spark.pipeline.bronze.follower import Follower
        from toril.spark.pipeline.bronze.query_ingest import QueryIngest

        if self.options.checkpoint is None:
            return Follower(self._source_options(), self.options.interval, self._note_starts)
        return QueryIngest(lambda: self.spark, self.start_ingest)

    def start_ingest(self, *, once: bool = False) -> Any:
        """The streaming query that fills bronze, with the user's checkpoint."""
        from toril.spark.pipeline.bronze.ingest import BronzeWriter
        from toril.spark.pipeline.files.checkpoint import mend
        from toril.spark.pipeline.session import in_pool

        if self.options.checkpoint is None:
            raise InvalidOption("checkpoint", "is missing", "name the folder that the query keeps")
        mend(self.options.checkpoint)
        self._note_starts()
        stream = self.spark.readStream.format("toril_ingest").options(**self._source_options()).load()
        writer = stream.writeStream.foreachBatch(BronzeWriter(self.lake)).queryName("toril_ingest")
        writer = writer.option("checkpointLocation", self.options.checkpoint)
        trigger = (
            {"availableNow": True}
            if once
            else {"processingTime": f"{int(self.options.interval * 1000)} milliseconds"}
        )
        with in_pool(self.spark, "toril_ingest"):
            return writer.trigger(**trigger).start()

    def _note_starts(self) -> None:
        """Where queues stand that the lake does not know: without it, each run would begin at its own present."""
        from toril.spark.pipeline.bronze.ingest import note_starts
        from toril.spark.sources.positions import end_of

        if self.options.starting == "latest":
            lake = Lake(self.options.lake, self.options.storage_options)  # ingest has a thread of its own
            note_starts(lake, {queue: end_of(state) for queue, state in self._states().items()})

    def _source_options(self) -> dict[str, str]:
        return {
            "url": self.redis,
            "queues": self.options.queues,
            "prefix": self.options.prefix,
            "starting": self.options.starting,
            "max_rows": str(self.options.max_rows),
            "discover_every": str(self.options.discover_every),
            "lake": self.lake.url,
            "storage_secrets": json.dumps(self.lake.storage_options),  # by its name, Spark hides it
            "parts": str(self.options.tasks),
        }

    def refine(self) -> int:
        """Hashes to bronze, then bronze to silver; the result is the number of events."""
        from toril.spark.pipeline.silver.rebuild import clear, is_cut_off

        if is_cut_off(self.lake):
            clear(self.lake)
            return self._rebuild()
        self._taker().run()
        return self._refiner().run()

    def _taker(self) -> SnapshotTaker:
        from toril.spark.pipeline.bronze.snapshots import SnapshotTaker

        options = self.options
        return SnapshotTaker(
            self._sessions.on_demand, self.lake, self.redis, options.prefix, options.snapshots
        )

    def _refiner(self, filled: str | None = None) -> SilverRefiner:
        from toril.spark.pipeline.silver.refiner import SilverRefiner

        return SilverRefiner(self._sessions.on_demand, self.lake, filled or self.options.filled)

    def gold(self, names: Sequence[str] = ("queue_minute", "queue_hour", "errors")) -> int:
        """Silver to gold."""
        from toril.spark.pipeline.gold.refiner import GoldRefiner
        from toril.spark.transforms import DEFAULT_RULES

        GoldRefiner(self._sessions.on_demand, self.lake, (*DEFAULT_RULES, *self.options.rules)).run(names)
        return 0

    def reconcile(self) -> int:
        """Tells from job hashes what gaps hide; the result is the number of jobs that were read."""
        from toril.spark.pipeline.bronze.reconcile import Reconciler

        options = self.options
        found = Reconciler(
            self._sessions.on_demand, self.lake, self.redis, options.prefix, self._taker(), self._catch_up
        ).run()
        if found:
            self.refine()
        return found

    def _catch_up(self) -> None:
        if not self._is_ingesting:
            self.ingest()
        else:
            self._await_ingest()

    def _await_ingest(self) -> None:
        """Waits until the running ingest has committed everything that is in Redis now."""
        from toril.errors import PipelineFailed

        goals = {queue: state.added for queue, state in self._states().items()}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not self._stopping.is_set():
            if all(self._has_read(queue, goal) for queue, goal in goals.items()):
                return
            self._stopping.wait(self.options.interval)
        raise PipelineFailed("events came faster than they were read: what a gap hides is told later")

    def _states(self) -> dict[str, StreamState]:
        """The event streams as they are in Redis now."""
        from toril.spark.sources.positions import look
        from toril.spark.sources.readers import stream_keys

        with self._connect() as transport:
            return look(transport, stream_keys(self._directory().queues(transport)))

    def _has_read(self, queue: str, goal: int | None) -> bool:
        from toril.spark.pipeline.bronze.ingest import TABLE, committed_position

        read = committed_position(self.lake.ensure(TABLE), queue).n
        return goal is None or (read is not None and read >= goal)

    def collect_reports(self) -> int:
        """Worker reports, to bronze."""
        if self._collector is None:
            from toril.spark.pipeline.bronze.worker_reports import ReportCollector

            self._collector = ReportCollector(self.lake, self._directory(), self._connect)
        self._collector.run()
        return 0

    def take_snapshots(self) -> int:
        """Hashes and logs of jobs, entries and dead letters, to bronze; the result is their number."""
        return (self._entries.run() if self.options.streams else 0) + self._taker().run()

    @functools.cached_property
    def _entries(self) -> EntryCollector:
        from toril.spark.pipeline.bronze.queue_entries import EntryCollector

        directories = {kind: self._stream_directory(kind) for kind in ("stream", "list")}
        return EntryCollector(lambda: self.spark, self.lake, self.redis, directories, self._connect)

    def maintain(self) -> Any:
        """Compacts and vacuums the tables."""
        from toril.spark.pipeline.files.maintain import Maintainer

        return Maintainer(self.lake, self.options.keep_files_hours).run()

    def up(
        self, stop: threading.Event | None = None, on_progress: Callable[[Any], object] | None = None
    ) -> None:
        """Runs until `stop` is set: ingest without pause, the other steps at their intervals, restarts on errors."""
        from toril.spark.pipeline.supervisor.supervisor import Step, Supervisor

        self.check()
        self._stopping = stop or threading.Event()
        steps = [
            Step("refine", self.options.refine_every, self.refine),
            Step("minutes", self.options.minutes_every, lambda: self.gold(("queue_minute",))),
            Step("reports", self.options.report_every, self.collect_reports),
            Step("snapshots", self.options.snapshot_every, self.take_snapshots),
            Step("figures", self.options.figures_every, self.gold),
            Step("reconcile", self.options.reconcile_every, self.reconcile),
            Step("maintain", self.options.maintain_every, self.maintain),
        ]
        self._is_ingesting = True
        try:
            # Beside the rest: a search through many keys must not hold up ingest.
            threading.Thread(target=self._say_if_reachable, name="toril-names", daemon=True).start()
            Supervisor(self, steps, self._stopping, on_progress or (lambda _: None)).run()
        finally:
            self._is_ingesting = False

    def replay(self) -> Summary:
        """Builds silver and gold anew from bronze, as after a change of the rules or when a table was rolled back.

        No row of bronze is touched, and Redis is asked only for hashes of events that are not refined yet. Without
        `fill`, those attempts are completed from hashes that were so before.
        """
        from toril.spark.pipeline.files.lineage import last_filled
        from toril.spark.pipeline.gold.kept_alerts import alerts_of_workers, put_back
        from toril.spark.pipeline.silver.rebuild import clear, take_back_marks

        filled = self.options.fill or last_filled(self.lake)
        take_back_marks(self.lake)
        self._bring_hashes()
        kept = alerts_of_workers(self.lake)
        clear(self.lake)
        put_back(self.lake, kept)
        return self._timed([("silver", lambda: self._rebuild(filled)), ("gold", self.gold)])

    def _bring_hashes(self) -> None:
        from toril.spark.pipeline.bronze.ingest import TABLE
        from toril.spark.pipeline.bronze.snapshot_writer import JOBS
        from toril.spark.pipeline.files.lineage import HASHES

        behind = self.lake.ensure(TABLE).version - self.lake.ensure(JOBS).committed(HASHES)
        if not behind:
            return
        try:
            reach(self.redis)
            self._taker().run()
        except RedisError as error:
            _log.warning("hashes of %d commits are not read, their attempts stay without: %s", behind, error)

    def _rebuild(self, filled: str | None = None) -> int:
        from toril.spark.pipeline.silver.rebuild import SilverRebuilder

        return SilverRebuilder(self._refiner(filled)).run()

    # --- reading ---------------------------------------------------------------------------------------------

    def query(self, sql: str) -> pa.Table:
        """SQL over the tables, without Spark."""
        return self.lake.query(sql)

    def report(self, target: str | Path = "report.html") -> Path:
        """One page with plots, without Spark."""
        from toril.lake import write_report

        return write_report(self.lake, target)

    def status(self) -> Any:
        """How the tables stand, and how far behind the queues they are; needs no Spark."""
        from toril.spark.pipeline.status import status

        return status(self.lake, self._directory(), self._connect)

    def _directory(self) -> Directory:
        from toril.spark.sources.discovery import Directory

        return Directory(SourceOptions.parse({"queues": self.options.queues, "prefix": self.options.prefix}))

    def _stream_directory(self, kind: str) -> Directory:
        from toril.spark.sources.discovery import Directory

        words = {
            "queues": self.options.streams,
            "prefix": self.options.stream_prefix,
            "env": self.options.env,
        }
        return Directory(SourceOptions.parse({**words, "table": "stream", "kind": kind}))

    def _connect(self) -> BlockingTransport:
        from toril.transport import BlockingTransport

        return BlockingTransport(self.redis)


def _again_on_conflict(step: Callable[[], int]) -> int:
    """Another pipeline on the same lake was faster: the step begins again from what the tables hold now."""
    for _ in range(_TRIES - 1):
        try:
            return step()
        except Exception as error:
            # Spark hands on what went wrong in a stream as text.
            if "CommitFailedError" not in f"{type(error).__name__} {error.__cause__}":
                raise
    return step()
