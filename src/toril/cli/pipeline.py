"""`toril pipeline`: copies events and jobs to tables, once or continuously."""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toril.cli._options import AsJson, Env, RedisUrl
from toril.cli._output import emit, emit_line, print_line, print_result, print_server, show, warn
from toril.cli._step_progress import step_progress
from toril.cli._target import Target
from toril.protocol.clock import Clock
from toril.protocol.compatibility import ENVELOPE_PREFIX

if TYPE_CHECKING:
    from toril.spark.pipeline import Pipeline

LakeOption = Annotated[str, typer.Option("--lake", metavar="DIR", help="Where the tables are.")]
PatternOption = Annotated[
    str, typer.Option("--queues", metavar="A,B", help="Names or patterns of BullMQ queues, with commas.")
]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Prefix of the keys of BullMQ queues.")]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: local[4], spark://…, sc://… (default: here)."
    ),
]
StreamsOption = Annotated[
    str,
    typer.Option(
        "--streams",
        metavar="A,B",
        help="Names or patterns of list and stream queues whose entries and dead letters are kept; '' for none.",
    ),
]
StreamPrefixOption = Annotated[
    str, typer.Option("--stream-prefix", help="Prefix of the keys of list and stream queues.")
]
SnapshotsOption = Annotated[
    str,
    typer.Option(
        "--snapshots",
        metavar="WHICH",
        help="Of which jobs the hash is kept when an attempt ends, and the log lines: all, failed (an attempt that "
        "did not complete) or none.",
    ),
]
FillOption = Annotated[
    str | None,
    typer.Option(
        "--fill",
        metavar="WHICH",
        help="Which attempts get worker and reason from the job's hash: all, failed or none; not more than "
        "--snapshots keeps (default: as many; replay: as before).",
    ),
]
StartingOption = Annotated[
    str,
    typer.Option(
        "--starting",
        metavar="WHEN",
        help="Where reading starts for queues that are new to the tables: earliest, latest, or a time such as "
        "2026-01-31T12:00:00Z.",
    ),
]
SparkLogOption = Annotated[
    bool, typer.Option("--spark-log", help="Show what Spark itself writes, from its start-up lines on.")
]
KeepFilesOption = Annotated[
    float, typer.Option("--keep-hours", help="How long files that are no longer in use stay for readers.")
]
KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="LAYER=SPAN,…",
        help="How long rows stay, by layer or table, such as bronze=30d,silver=1y (d, w, m, y); others stay for ever.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="WHICH",
        help="What computes the tables: driver (this process, without Java), spark, or auto (driver for up to a "
        "million events, unless --master is given).",
    ),
]
_PRINTED_EVERY = 10.0  # seconds between two lines about a pipeline that is up
_REPORT = """
    select queue, sum(completed) as completed, sum(failed) as failed, sum(retried) as retried,
           max(wait_p95_ms) as worst_wait_p95_ms, max(run_p95_ms) as worst_run_p95_ms, max(hour) as until
    from gold.queue_hour where hour >= date_trunc('hour', $since) group by queue order by queue
"""


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Events and jobs as tables: bronze, silver, gold.", no_args_is_help=True)
    for command in (up, run, status, check, query, report, views, replay, maintain):
        group.command(command.__name__)(command)
    app.add_typer(group, name="pipeline")


def _pipeline(redis: str | None, lake: str, master: str | None = None, **options: Any) -> Pipeline:
    from toril.spark.pipeline import Pipeline, PipelineOptions
    from toril.spark.sources.server_choice import require_named_server

    require_named_server(master or "local", redis)
    target = Target.of(redis)
    wanted = PipelineOptions(
        redis=target.redis, lake=lake, master=master, **options
    )  # refused before Spark starts
    print_server()
    return Pipeline(wanted)


def up(
    lake: LakeOption = "./lake",
    queues: PatternOption = "*",
    prefix: PrefixOption = "bull",
    streams: StreamsOption = "*",
    stream_prefix: StreamPrefixOption = ENVELOPE_PREFIX,
    env: Env = "prod",
    snapshots: SnapshotsOption = "all",
    fill: FillOption = None,
    starting: StartingOption = "earliest",
    keep: KeepOption = "",
    master: MasterOption = None,
    spark_log: SparkLogOption = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Keep the tables up to date until Ctrl-C or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    pipeline = _pipeline(
        redis,
        lake,
        master=master,
        spark_log=spark_log,
        queues=queues,
        prefix=prefix,
        streams=streams,
        stream_prefix=stream_prefix,
        env=env,
        snapshots=snapshots,
        fill=fill,
        starting=starting,
        keep=keep,
    )
    if not as_json:
        print_line(f"tables in {pipeline.lake.url} follow the queues; Ctrl-C ends it")
    pipeline.up(over, emit_line if as_json else _ProgressPrinter())


class _ProgressPrinter:
    """Prints the progress of a pipeline: every ten seconds, and at once when a step fails or recovers."""

    def __init__(self, clock: Clock = time) -> None:
        self._clock = clock
        self._next = 0.0
        self._problems: list[str] = []

    def __call__(self, progress: Any) -> None:
        problems = [f"{name}: {one['error']}" for name, one in progress.steps.items() if one["error"]]
        problems += [f"ingest: {progress.error}"] if progress.error else []
        now = self._clock.monotonic()
        if now < self._next and problems == self._problems:
            return
        self._next, self._problems = now + _PRINTED_EVERY, problems
        steps = ", ".join(
            f"{name} {one['seconds']:.1f} s" for name, one in progress.steps.items() if one["runs"]
        )
        print_line(f"{progress.batches} batches since the last start; {steps or 'no step done yet'}")
        for problem in problems:
            print_line(f"  {problem}")


def run(
    lake: LakeOption = "./lake",
    queues: PatternOption = "*",
    prefix: PrefixOption = "bull",
    streams: StreamsOption = "*",
    stream_prefix: StreamPrefixOption = ENVELOPE_PREFIX,
    env: Env = "prod",
    snapshots: SnapshotsOption = "all",
    fill: FillOption = None,
    starting: StartingOption = "earliest",
    engine: EngineOption = "auto",
    master: MasterOption = None,
    spark_log: SparkLogOption = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Bring everything that is in the queues now into the tables."""
    pipeline = _pipeline(
        redis,
        lake,
        master=master,
        engine=engine,
        spark_log=spark_log,
        queues=queues,
        prefix=prefix,
        streams=streams,
        stream_prefix=stream_prefix,
        env=env,
        snapshots=snapshots,
        fill=fill,
        starting=starting,
    )
    with step_progress(quiet=as_json) as on_step:
        done = pipeline.run_once(on_step)
    _summarise(done, as_json=as_json)


def _summarise(summary: Any, *, as_json: bool) -> None:
    if as_json:
        emit({"events": summary.events, "seconds": summary.seconds, "steps": summary.steps})
        return
    if not summary.steps:
        print_line(f"0 events in {summary.seconds:.1f} s (nothing new)")
        return
    steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.steps.items())
    print_line(f"{summary.events} events in {summary.seconds:.1f} s ({steps})")


def status(
    lake: LakeOption = "./lake",
    queues: PatternOption = "*",
    prefix: PrefixOption = "bull",
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the state of the tables and how far they are behind the queues; needs no Spark."""
    found = _pipeline(redis, lake, queues=queues, prefix=prefix).status()
    if as_json:
        emit(found.as_dict())
        return
    rows = [(one.table, one.rows, one.files, one.bytes, one.version) for one in found.tables]
    show(
        ["table", "rows", "files", "bytes", "version"],
        rows,
        right=["rows", "files", "bytes", "version"],
        empty="no tables yet",
    )
    if found.rolled_back:
        warn(found.rolled_back)
    show(
        ["queue", "events", "read", "behind"],
        [(one.queue, one.added, one.read, one.behind) for one in found.queues],
        right=["events", "read", "behind"],
        empty=found.problem or f"no queue matches {queues!r} under prefix {prefix!r}",
    )


def check(
    lake: LakeOption = "./lake",
    queues: PatternOption = "*",
    prefix: PrefixOption = "bull",
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Compare the tables with Redis, with each other and with their files; exit code 1 if there is a fault."""
    findings = _pipeline(redis, lake, queues=queues, prefix=prefix).examine()
    if as_json:
        emit(findings)
    else:
        rows = [(one.level, one.check, one.subject, f"{one.problem}\n→ {one.remedy}") for one in findings]
        show(
            ["", "check", "subject", "finding"], rows, empty="the tables agree with Redis and with each other"
        )
    if any(one.level == "fault" for one in findings):
        raise typer.Exit(1)


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="Tables are called gold.queue_minute and so on.")],
    lake: LakeOption = "./lake",
    as_json: AsJson = False,
) -> None:
    """Run one SQL statement on the tables; it can neither write nor read other files; needs no Spark."""
    found = _lake(lake)
    answer = found.query(sql)
    if not answer.num_rows and not found.tables():
        warn(f"there are no tables in {lake}; run `toril pipeline run` first, or check --lake")
    _print(answer, as_json=as_json)


def report(
    lake: LakeOption = "./lake",
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = "report.html",
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0, help="Only the last so many hours; left out: everything."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise each queue from the tables, in a page with plots; needs no Spark."""
    found, now = _lake(lake), datetime.now(UTC)
    since = now - timedelta(hours=hours) if hours is not None else datetime(1, 1, 1, tzinfo=UTC)
    _print(found.query(_REPORT, {"since": since}), as_json=as_json)
    if not as_json:
        from toril.lake import write_report

        print_line(f"the page with plots is in {write_report(found, output, since=since, now=now)}")


def views(
    lake: LakeOption = "./lake",
    duckdb: Annotated[
        str, typer.Option("--duckdb", metavar="FILE", help="The database; it is created if it is not there.")
    ] = "lake.duckdb",
    spark: Annotated[
        str, typer.Option("--spark", metavar="FILE", help="The script for Spark SQL.")
    ] = "lake-views.sql",
    as_json: AsJson = False,
) -> None:
    """Write views of all tables for DuckDB and for Spark SQL; those of DuckDB show the rows of now; needs no Spark."""
    from toril.lake.views import spark_views, write_duckdb_views

    found = _lake(lake)
    names = write_duckdb_views(found, duckdb)
    statements = list(spark_views(found))
    Path(spark).write_text("".join(f"{one}\n" for one in statements))
    line = f"{len(names)} views in {duckdb}, {len(statements)} statements for Spark in {spark}"
    print_result({"duckdb": duckdb, "views": names, "spark": spark}, line, as_json=as_json)


def replay(
    lake: LakeOption = "./lake",
    queues: PatternOption = "*",
    prefix: PrefixOption = "bull",
    fill: FillOption = None,
    engine: EngineOption = "auto",
    drop_older: Annotated[
        bool, typer.Option("--drop-older", help="Remove attempts that are older than the events in bronze.")
    ] = False,
    master: MasterOption = None,
    spark_log: SparkLogOption = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Build silver and gold anew from bronze, as after an upgrade or when a table was rolled back."""
    pipeline = _pipeline(
        redis,
        lake,
        master=master,
        engine=engine,
        spark_log=spark_log,
        queues=queues,
        prefix=prefix,
        fill=fill,
    )
    with step_progress(quiet=as_json) as on_step:
        done = pipeline.replay(on_step, drop_older=drop_older)
    _summarise(done, as_json=as_json)


def maintain(
    lake: LakeOption = "./lake",
    keep: KeepOption = "",
    keep_hours: KeepFilesOption = 168.0,
    as_json: AsJson = False,
) -> None:
    """Remove old rows, compact small files and remove unused ones; `up` does it by itself; needs no Spark."""
    from toril.spark.pipeline import Pipeline, PipelineOptions

    done = Pipeline(PipelineOptions(lake=lake, keep_files_hours=keep_hours, keep=keep)).maintain()
    if as_json:
        emit(done)
        return
    rows = [(one.table, one.expired, one.compacted, one.removed) for one in done]
    columns = ["expired rows", "compacted", "removed"]
    show(["table", *columns], rows, right=columns, empty="no tables yet")


def _lake(place: str) -> Any:
    from toril.lake import Lake

    return Lake(place)


def _print(answer: Any, *, as_json: bool) -> None:
    rows = answer.to_pylist()
    if as_json:
        emit(rows)
    else:
        show(answer.column_names, [tuple(row.values()) for row in rows], empty="no rows")
