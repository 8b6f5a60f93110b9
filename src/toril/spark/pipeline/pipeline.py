"""`Pipeline`: Redis → bronze → silver → gold, once or all the time.

Guarantee: `run_once` leaves the tables as of the moment it began, or later. Run again after any interruption, it
continues where the tables end and neither repeats nor misses a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.lineage import check_layers, last_filled
from toril.spark.pipeline.options import PipelineOptions, Summary
from toril.spark.pipeline.steps import STEPS, OnStep, resolve, run_steps, step, steps_once
from toril.spark.pipeline.supervisor.supervisor import Ingest, Progress, Step, Supervisor
from toril.spark.pipeline.unmatched_names import warn_about_unmatched_names, warn_if_reachable
from toril.spark.pipeline.up_to_date import is_up_to_date
from toril.spark.sources.server_choice import check_reachable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from toril.lake import Lake
    from toril.spark.pipeline.check import LakeFinding
    from toril.spark.pipeline.files.maintain import Maintained
    from toril.spark.pipeline.status import PipelineLag, Status

_FIGURES: Final = ("queue_minute", "queue_hour", "errors")


class Pipeline:
    """All steps from Redis to gold. Without `spark`, a local session is started when one is needed."""

    def __init__(self, options: PipelineOptions | None = None, *, spark: SparkSession | None = None) -> None:
        self._context = PipelineContext(options or PipelineOptions(), spark)

    @property
    def options(self) -> PipelineOptions:
        return self._context.options

    @property
    def lake(self) -> Lake:
        return self._context.lake

    @property
    def spark(self) -> SparkSession:
        """The pipeline's own session, started on first use."""
        return self._context.sessions.session()

    @property
    def redis(self) -> str:
        """The address of the server, the same for the driver and all tasks; refused if it cannot be chosen."""
        return self._context.redis

    def drop_dead_spark(self) -> str | None:
        """Returns why Spark's Java process ended, if it did; `spark` then starts another."""
        return self._context.sessions.drop_if_dead()

    # --- all steps -------------------------------------------------------------------------------------------

    def run_once(self, on_step: OnStep = lambda *_: None) -> Summary:
        """Brings everything that is in Redis now through to gold; `on_step` is called before each step.

        If there is nothing new, no step runs, and the summary names none.
        """
        began = time.monotonic()
        check_reachable(self.redis)  # before Spark starts: a wrong address is reported at once
        warn_about_unmatched_names(self._context)
        if is_up_to_date(self._context):
            return Summary(events=0, seconds=time.monotonic() - began, steps={})
        self.check()
        self._context.create_folders()
        self._context.in_driver = self._fits_the_driver()
        return run_steps(self._context, steps_once(self._context), on_step)

    def _fits_the_driver(self, *, anew: bool = False) -> bool:
        from toril.spark.pipeline.engine_choice import fits_the_driver

        return fits_the_driver(self._context, anew=anew)

    def check(self) -> None:
        """Raises `TableRolledBack` when a table holds less than what was computed from it."""
        check_layers(self.lake)

    def up(
        self, stop: threading.Event | None = None, on_progress: Callable[[Progress], object] | None = None
    ) -> None:
        """Runs until `stop` is set: ingest without pause, the other steps at their intervals, restarts on errors."""
        self.check()
        context = self._context
        context.create_folders()
        context.in_driver = False  # its steps must not slow down ingest, which runs in this process
        context.stopping = stop or threading.Event()
        steps = [
            Step(one.name, one.every(self.options), partial(one.run, context)) for one in STEPS if one.every
        ]
        context.is_ingesting = True
        try:
            # On a thread: a search through many keys must not delay ingest.
            names = threading.Thread(
                target=warn_if_reachable, args=(context,), name="toril-names", daemon=True
            )
            names.start()
            Supervisor(self, steps, context.stopping, on_progress or (lambda _: None)).run()
        finally:
            context.is_ingesting = False

    def replay(self, on_step: OnStep = lambda *_: None, *, drop_older: bool = False) -> Summary:
        """Computes silver and gold anew from bronze, as after a change of rules or when a table was rolled back.

        No row of bronze is changed, and Redis is asked only for hashes of events that are not refined yet. Without
        the option `fill`, the attempts that were completed from hashes before are completed again. Attempts that are
        older than bronze, because it keeps less than silver, are removed only with `drop_older`; without it the replay
        is refused.
        """
        context = self._context
        context.in_driver = self._fits_the_driver(anew=True)
        filled = self.options.fill or last_filled(self.lake)
        prepare = cast("Callable[..., None]", resolve("replay:prepare"))
        prepare(context, drop_older=drop_older)
        rebuild = cast("Callable[[PipelineContext, str | None], int]", resolve("silver.steps:rebuild"))
        steps = [("silver", lambda: rebuild(context, filled)), ("gold", self.gold)]
        return run_steps(context, steps, on_step)

    # --- single steps ----------------------------------------------------------------------------------------

    def ingest(self) -> int:
        """Commits the events that Redis holds now to bronze."""
        self._context.create_folders()
        return step("ingest").run(self._context)

    def new_ingest(self) -> Ingest:
        """Returns what keeps bronze/events up to date while the pipeline is up."""
        return cast("Callable[[PipelineContext], Ingest]", resolve("bronze.steps:new_ingest"))(self._context)

    def start_ingest(self, *, once: bool = False) -> StreamingQuery:
        """Starts the streaming query that writes bronze/events, with the user's checkpoint."""
        start = cast("Callable[..., StreamingQuery]", resolve("bronze.steps:start_ingest"))
        return start(self._context, once=once)

    def refine(self) -> int:
        """Commits hashes to bronze, then refines bronze to silver. Returns the number of events."""
        return step("silver").run(self._context)

    def gold(self, names: Sequence[str] = _FIGURES) -> int:
        """Computes the tables named from silver, then workers and alerts."""
        refresh = cast("Callable[[PipelineContext, Sequence[str]], int]", resolve("gold.steps:refresh"))
        return refresh(self._context, names)

    def reconcile(self) -> int:
        """Completes silver from job hashes where events are missing. Returns the number of jobs that were read."""
        return step("reconcile").run(self._context)

    def collect_reports(self) -> int:
        """Commits new worker reports to bronze."""
        return step("reports").run(self._context)

    def take_snapshots(self) -> int:
        """Commits hashes and logs of jobs, entries and dead letters to bronze. Returns their number."""
        return step("snapshots").run(self._context)

    def maintain(self) -> list[Maintained]:
        """Compacts and vacuums the tables."""
        from toril.spark.pipeline.files.maintain import maintain

        return maintain(self._context)

    # --- reading ---------------------------------------------------------------------------------------------

    def query(self, sql: str) -> pa.Table:
        """Runs SQL over the tables, without Spark."""
        return self.lake.query(sql)

    def report(self, target: str | Path = "report.html") -> Path:
        """Writes one page with plots, without Spark."""
        from toril.lake import write_report

        return write_report(self.lake, target)

    def examine(self) -> list[LakeFinding]:
        """Compares the tables with Redis, with each other and with their files; needs no Spark."""
        from toril.spark.pipeline.check import examine

        return examine(self.lake, self._context.queue_discovery(), self._context.connect)

    def lag(self) -> PipelineLag:
        """Returns how far the tables are behind the queues; reads no rows and needs no Spark."""
        from toril.spark.pipeline.status import lag

        return lag(self.lake, self._context.queue_discovery(), self._context.connect)

    def status(self) -> Status:
        """Returns the state of the tables and how far they are behind the queues; needs no Spark."""
        from toril.spark.pipeline.status import status

        return status(self.lake, self._context.queue_discovery(), self._context.connect)
