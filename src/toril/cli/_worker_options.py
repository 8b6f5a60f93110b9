"""The options of `toril worker` with their help."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from toril.cli._completion import complete_queue

Level = Literal["debug", "info", "warning", "error"]

_SOME_KINDS = "List and stream queues"
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
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency", "-c", min=1, help="Number of jobs that run at the same time, per queue and process."
    ),
]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, help="Number of worker processes.")]
Executor = Annotated[
    Literal["auto", "async", "thread", "process"],
    typer.Option("--executor", help="Where the function runs."),
]
LockDuration = Annotated[
    float,
    typer.Option(
        "--lock-duration", help="Seconds after which a job counts as stalled if its lock is not renewed."
    ),
]
JobTimeout = Annotated[float | None, typer.Option("--job-timeout", help="Seconds that an attempt may take.")]
ShutdownTimeout = Annotated[
    float, typer.Option("--shutdown-timeout", help="Seconds that running jobs have to finish after a stop.")
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", help="Maximum attempts of every job, instead of the job's own."),
]
MaxResultSize = Annotated[
    int,
    typer.Option(
        "--max-result-size",
        min=0,
        help="Maximum size of a result in bytes of JSON; a larger one fails the job. 0: no limit.",
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate-limit",
        metavar="JOBS/SECONDS",
        help="BullMQ queues: maximum rate over all workers, e.g. 100/60.",
    ),
]
_BATCHES = "Batches"
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        help="The function takes a list of up to so many jobs.",
        rich_help_panel=_BATCHES,
    ),
]
BatchWait = Annotated[
    float | None,
    typer.Option(
        "--batch-wait",
        min=0,
        help="Seconds that fewer jobs stay in the queue, so that others can join. Default: 0.5.",
        rich_help_panel=_BATCHES,
    ),
]
BatchMinSize = Annotated[
    int | None,
    typer.Option(
        "--batch-min-size", min=1, help="Fewer jobs than this stay in the queue.", rich_help_panel=_BATCHES
    ),
]
BatchBy = Annotated[
    Literal["name", "group"] | None,
    typer.Option(
        "--batch-by",
        help="All jobs of a batch have the same name, or the same group.",
        rich_help_panel=_BATCHES,
    ),
]
RetryUnknown = Annotated[
    bool,
    typer.Option(
        "--retry-unknown",
        help="Retry errors that are neither known as transient nor as permanent, as BullMQ does.",
    ),
]
UnknownNames = Annotated[
    Literal["requeue", "fail"],
    typer.Option(
        "--unknown-names",
        help="Jobs whose name has no function: put them back for other workers, for up to an hour, or fail them.",
    ),
]
RemoveOnComplete = Annotated[
    int | None,
    typer.Option(
        "--remove-on-complete",
        min=0,
        help="Completed jobs to keep, for jobs that do not say it themselves. Default: all.",
        show_default=False,
    ),
]
RemoveOnFail = Annotated[
    int | None,
    typer.Option(
        "--remove-on-fail",
        min=0,
        help="Failed jobs to keep, for jobs that do not say it themselves. Default: all.",
        show_default=False,
    ),
]
CronGenerationOption = Annotated[
    int,
    typer.Option(
        "--cron-generation", min=5, max=6, help="Read the patterns of schedulers as BullMQ 5 or 6 does."
    ),
]
Reload = Annotated[
    bool, typer.Option("--reload", help="For development: start again when a Python file here changes.")
]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when no jobs are left.")]

Reliable = Annotated[
    bool,
    typer.Option(
        "--reliable", help="Lists: jobs of workers that died run again.", rich_help_panel=_SOME_KINDS
    ),
]
KeepResults = Annotated[
    float | None,
    typer.Option("--keep-results", help="Store results for so many seconds.", rich_help_panel=_SOME_KINDS),
]
ConsumerGroup = Annotated[
    str | None,
    typer.Option(
        "--consumer-group",
        help="Streams: the consumer group. Default: NAME-workers.",
        rich_help_panel=_SOME_KINDS,
        show_default=False,
    ),
]
ClaimIdle = Annotated[
    float | None,
    typer.Option(
        "--claim-idle",
        help="Streams: seconds after which jobs of a worker that does not report are claimed. Default: 300.",
        rich_help_panel=_SOME_KINDS,
        show_default=False,
    ),
]

Browser = Annotated[
    bool,
    typer.Option(
        "--browser",
        help="Run these tasks: navigate_extract, screenshot, pdf.",
        rich_help_panel=_BROWSER,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="HOST|NETWORK",
        help="Host or network that pages may be loaded from although it is not public; can be repeated.",
        rich_help_panel=_BROWSER,
    ),
]

HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        help="Port for /healthz, /readyz and, with the extra prometheus, /metrics; the n-th process adds n.",
        rich_help_panel=_MONITORING,
    ),
]
HttpHost = Annotated[
    str, typer.Option("--http-host", help="Address for --http-port.", rich_help_panel=_MONITORING)
]
LogLevel = Annotated[
    Level,
    typer.Option("--log-level", help="Lowest level that is logged.", rich_help_panel=_MONITORING),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="Format of the log.", rich_help_panel=_MONITORING),
]

Spark = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="MASTER",
        help="Run the function on the executors of Spark: local[N,4], spark://HOST:PORT or sc://HOST. "
        "It takes a job, or by its annotation a batch: pandas.DataFrame or pyarrow.Table.",
        rich_help_panel=_SPARK,
        show_default=False,
    ),
]
MaxJobs = Annotated[
    int | None,
    typer.Option(
        "--max-jobs",
        min=1,
        help="Maximum number of jobs in a batch.",
        rich_help_panel=_SPARK,
        show_default=False,
    ),
]
DataSchema = Annotated[
    str | None,
    typer.Option(
        "--data-schema",
        metavar="DDL",
        help="Columns of the data of jobs, e.g. 'x double, y double'. Without it, batches have JSON text.",
        rich_help_panel=_SPARK,
        show_default=False,
    ),
]
Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks",
        min=1,
        help="Spark tasks at the same time. Default: as many as Spark has cores.",
        rich_help_panel=_SPARK,
        show_default=False,
    ),
]
