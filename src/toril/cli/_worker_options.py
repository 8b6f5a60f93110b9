"""What can be said to `toril worker`, each option defined once with its help."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from toril.cli._completion import complete_queue

Level = Literal["debug", "info", "warning", "error"]

_SOME_KINDS = "List and stream queues"
_BROWSER = "Browser tasks"
_WATCHING = "Watching it"

Handler = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE[:FUNCTION]",
        help="A function of one argument, or a mapping of them by name; a module alone: its task registry.",
        show_default=False,
    ),
]
QueueOption = Annotated[
    list[str],
    typer.Option(
        "--queue",
        "-q",
        help="NAME, list:NAME or stream:NAME; may be given many times.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once, of each queue in each process.")
]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")]
Executor = Annotated[
    Literal["auto", "async", "thread", "process"],
    typer.Option("--executor", help="Where the function runs."),
]
LockDuration = Annotated[
    float, typer.Option("--lock-duration", help="Seconds until a silent job counts as stalled.")
]
JobTimeout = Annotated[float | None, typer.Option("--job-timeout", help="Seconds an attempt may take.")]
ShutdownTimeout = Annotated[
    float, typer.Option("--shutdown-timeout", help="Seconds for jobs in hand to finish.")
]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Overrides what jobs ask for.")]
MaxResultSize = Annotated[
    int,
    typer.Option(
        "--max-result-size",
        min=0,
        help="Bytes of JSON that a result may have; more fails the job. 0: no limit.",
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate-limit", metavar="JOBS/SECONDS", help="BullMQ queues: over all workers, e.g. 100/60."
    ),
]
RetryUnknown = Annotated[
    bool, typer.Option("--retry-unknown", help="Retry errors of unknown kind, as BullMQ does.")
]
UnknownNames = Annotated[
    Literal["requeue", "fail"],
    typer.Option(
        "--unknown-names",
        help="Jobs whose name has no function: put them back for other workers, for up to an hour, or fail them.",
    ),
]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to do.")]

Reliable = Annotated[
    bool,
    typer.Option("--reliable", help="Lists: jobs of dead workers run again.", rich_help_panel=_SOME_KINDS),
]
KeepResults = Annotated[
    float | None,
    typer.Option("--keep-results", help="Seconds that results are kept.", rich_help_panel=_SOME_KINDS),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Streams: the consumer group; left out: NAME-workers.",
        rich_help_panel=_SOME_KINDS,
        show_default=False,
    ),
]
ClaimIdle = Annotated[
    float | None,
    typer.Option(
        "--claim-idle",
        help="Streams: seconds after which a silent worker's jobs are taken over; left out: 300.",
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
        help="What pages may come from though it is not public; may be given many times.",
        rich_help_panel=_BROWSER,
    ),
]

HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        help="Serve /healthz, /readyz and, with the extra prometheus, /metrics; the n-th process adds n.",
        rich_help_panel=_WATCHING,
    ),
]
HttpHost = Annotated[str, typer.Option("--http-host", help="Where to serve them.", rich_help_panel=_WATCHING)]
LogLevel = Annotated[
    Level,
    typer.Option("--log-level", help="From which level on lines are written.", rich_help_panel=_WATCHING),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="How they look.", rich_help_panel=_WATCHING),
]
