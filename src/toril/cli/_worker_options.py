"""The options of `toril worker` with their help, in groups (see `_option_groups`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from toril.app.settings import parse_rate
from toril.cli._completion import complete_queue
from toril.errors import InvalidOption
from toril.protocol.batch import Batch
from toril.protocol.worker_options import DEFAULT_MAX_RESULT_SIZE

Level = Literal["debug", "info", "warning", "error"]

_SOME_KINDS = "List and stream queues"
_BATCHES = "Batches"
_BROWSER = "Browser tasks"
_MONITORING = "Monitoring"
_SPARK = "Spark"

Handler = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE[:NAME]",
        help="An App, a Worker, a function that takes a job, a mapping of job names to functions, or a function "
        "without arguments that makes one of them. A module alone: its app.",
        show_default=False,
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        help="NAME, list:NAME or stream:NAME; NAME=4 sets its concurrency; can be repeated. Default: all of an app.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The options of all workers; the names are those of `WorkerOptions`."""

    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Number of jobs that run at the same time, per queue and process.",
        ),
    ] = 1
    executor: Annotated[
        Literal["auto", "async", "thread", "process"],
        typer.Option("--executor", help="Where the function runs."),
    ] = "auto"
    lock_duration: Annotated[
        float,
        typer.Option(
            "--lock-duration", help="Seconds after which a job counts as stalled if its lock is not renewed."
        ),
    ] = 30.0
    stalled_check_interval: Annotated[
        float,
        typer.Option("--stalled-check-interval", help="Seconds between two searches for stalled jobs."),
    ] = 30.0
    job_timeout: Annotated[
        float | None, typer.Option("--job-timeout", help="Seconds that an attempt may take.")
    ] = None
    shutdown_timeout: Annotated[
        float,
        typer.Option("--shutdown-timeout", help="Seconds that running jobs have to finish after a stop."),
    ] = 30.0
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", help="Maximum attempts of every job, instead of the job's own."),
    ] = None
    max_result_size: Annotated[
        int,
        typer.Option(
            "--max-result-size",
            min=0,
            help="Maximum size of a result in bytes of JSON; a larger one fails the job. 0: no limit.",
        ),
    ] = DEFAULT_MAX_RESULT_SIZE
    rate_limit: Annotated[
        str | None,
        typer.Option(
            "--rate-limit",
            metavar="JOBS/SECONDS",
            help="BullMQ queues: maximum rate over all workers, e.g. 100/60.",
        ),
    ] = None
    unknown_errors: Annotated[
        Literal["permanent", "transient"],
        typer.Option(
            "--unknown-errors", help="Errors of unknown kind: transient retries them, as BullMQ does."
        ),
    ] = "permanent"
    unknown_names: Annotated[
        Literal["requeue", "fail"],
        typer.Option(
            "--unknown-names",
            help="Jobs whose name has no function: put them back for other workers, for up to an hour, or fail them.",
        ),
    ] = "requeue"
    remove_on_complete: Annotated[
        int | None,
        typer.Option(
            "--remove-on-complete",
            min=0,
            help="Completed jobs to keep, for jobs without this option of their own. Default: all.",
            show_default=False,
        ),
    ] = None
    remove_on_fail: Annotated[
        int | None,
        typer.Option(
            "--remove-on-fail",
            min=0,
            help="Failed jobs to keep, for jobs without this option of their own. Default: all.",
            show_default=False,
        ),
    ] = None
    results_to: Annotated[
        str | None,
        typer.Option(
            "--results-to",
            metavar="QUEUE",
            help="BullMQ queues: add each result to this queue as a job, once.",
            show_default=False,
            autocompletion=complete_queue,
        ),
    ] = None
    cron_generation: Annotated[
        int,
        typer.Option(
            "--cron-generation", min=5, max=6, help="Read the patterns of schedulers as BullMQ 5 or 6 does."
        ),
    ] = 5
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="Any other option of queues and workers by its name in code, e.g. drain_delay=2; can be repeated.",
            show_default=False,
        ),
    ] = None

    def as_options(self, *, browser: bool) -> dict[str, Any]:
        """Returns the options of a worker. Browser tasks have their own time-out, whose error names the page."""
        options = given_options(
            job_timeout=None if browser else self.job_timeout,
            concurrency=self.concurrency,
            executor=self.executor,
            lock_duration=self.lock_duration,
            stalled_check_interval=self.stalled_check_interval,
            shutdown_timeout=self.shutdown_timeout,
            max_attempts=self.max_attempts,
            rate_limit=None if self.rate_limit is None else parse_rate(self.rate_limit),
            remove_on_complete=self.remove_on_complete,
            remove_on_fail=self.remove_on_fail,
            results_to=self.results_to,
        )
        options["max_result_size"] = self.max_result_size or None
        options["unknown_errors"] = self.unknown_errors
        options["unknown_names"] = self.unknown_names
        options["cron_generation"] = self.cron_generation
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The options of a function that takes a list of jobs."""

    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            help="The function takes a list of up to so many jobs.",
            rich_help_panel=_BATCHES,
        ),
    ] = None
    batch_wait: Annotated[
        float | None,
        typer.Option(
            "--batch-wait",
            min=0,
            help="Seconds that fewer jobs stay in the queue, so that others can join. Default: 0.5.",
            rich_help_panel=_BATCHES,
        ),
    ] = None
    batch_min_size: Annotated[
        int | None,
        typer.Option(
            "--batch-min-size",
            min=1,
            help="Fewer jobs than this stay in the queue.",
            rich_help_panel=_BATCHES,
        ),
    ] = None
    batch_by: Annotated[
        Literal["name", "group"] | None,
        typer.Option(
            "--batch-by",
            help="All jobs of a batch have the same name, or the same group.",
            rich_help_panel=_BATCHES,
        ),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """Returns the option `batch`, if batches are wanted."""
        given = given_options(
            size=self.batch_size, wait=self.batch_wait, min_size=self.batch_min_size, by=self.batch_by
        )
        if given and "size" not in given:
            option = f"--batch-{next(iter(given)).replace('_', '-')}"
            raise InvalidOption(option, "is given without --batch-size", "give both")
        return {"batch": Batch(**given)} if given else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeSettings:
    """The options of workers of list and stream queues."""

    reliable: Annotated[
        bool,
        typer.Option(
            "--reliable", help="Lists: jobs of workers that died run again.", rich_help_panel=_SOME_KINDS
        ),
    ] = False
    keep_results: Annotated[
        float | None,
        typer.Option(
            "--keep-results", help="Store results for so many seconds.", rich_help_panel=_SOME_KINDS
        ),
    ] = None
    consumer_group: Annotated[
        str | None,
        typer.Option(
            "--consumer-group",
            help="Streams: the consumer group. Default: NAME-workers.",
            rich_help_panel=_SOME_KINDS,
            show_default=False,
        ),
    ] = None
    claim_idle: Annotated[
        float | None,
        typer.Option(
            "--claim-idle",
            help="Streams: seconds after which jobs of a worker that does not report are claimed. Default: 300.",
            rich_help_panel=_SOME_KINDS,
            show_default=False,
        ),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """Returns the options that were given; each is for some kinds of queue only."""
        return given_options(
            reliable=self.reliable or None,
            consumer_group=self.consumer_group,
            claim_idle=self.claim_idle,
            keep_results=self.keep_results,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How many processes run, and when they end or start again."""

    processes: Annotated[
        int, typer.Option("--processes", "-p", min=1, help="Number of worker processes.")
    ] = 1
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no jobs are left.")] = False
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start again when a Python file here changes.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """The options of the browser tasks."""

    browser: Annotated[
        bool,
        typer.Option(
            "--browser",
            help="Run these tasks: navigate_extract, screenshot, pdf.",
            rich_help_panel=_BROWSER,
        ),
    ] = False
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="HOST|NETWORK",
            help="Host or network that pages may be loaded from although it is not public; can be repeated.",
            rich_help_panel=_BROWSER,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringSettings:
    """The log, probes and metrics."""

    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            help="Port for /healthz, /readyz and, with the extra prometheus, /metrics; the n-th process adds n.",
            rich_help_panel=_MONITORING,
        ),
    ] = None
    http_host: Annotated[
        str, typer.Option("--http-host", help="Address for --http-port.", rich_help_panel=_MONITORING)
    ] = "127.0.0.1"
    log_level: Annotated[
        Level,
        typer.Option("--log-level", help="Lowest level that is logged.", rich_help_panel=_MONITORING),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option("--log-format", help="Format of the log.", rich_help_panel=_MONITORING),
    ] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The options of work on Spark's executors."""

    spark: Annotated[
        str | None,
        typer.Option(
            "--spark",
            metavar="MASTER",
            help="Run the function on the executors of Spark: local[N,4], spark://HOST:PORT or sc://HOST. "
            "It takes a job, or by its annotation a batch: pandas.DataFrame or pyarrow.Table.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "loop", "rows"] | None,
        typer.Option(
            "--engine",
            help="loop: workers inside long tasks; rows: jobs as rows of a streaming query, for a function of a "
            "DataFrame of Spark. Default: by the function.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None
    slice: Annotated[
        float | None,
        typer.Option(
            "--slice",
            min=1,
            max=3600,
            metavar="SECONDS",
            help="How long a task of the loop runs before Spark starts it again. Default: 20.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None
    max_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-jobs",
            min=1,
            help="Maximum number of jobs in a batch.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None
    data_schema: Annotated[
        str | None,
        typer.Option(
            "--data-schema",
            metavar="DDL",
            help="Columns of the data of jobs, e.g. 'x double, y double'. Without it, batches have JSON text.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=1,
            help="Spark tasks at the same time. Default: as many as Spark has cores.",
            rich_help_panel=_SPARK,
            show_default=False,
        ),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """Returns the options of a `SparkWorker` that were given."""
        return given_options(
            engine=self.engine,
            slice=self.slice,
            max_jobs=self.max_jobs,
            data_schema=self.data_schema,
            tasks=self.tasks,
        )


def given_options(**options: Any) -> dict[str, Any]:
    """Returns the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
