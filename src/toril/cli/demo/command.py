"""`toril demo`: an embedded server, producers, workers of all kinds, tables of what happened, and jobs on Spark.

Guarantee: except for the report it removes everything it created; the exit code is 0 if every job had its planned
outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from toril import sync
from toril.cli._options import AsJson, RedisUrl
from toril.cli._output import emit, format_seconds, set_server_line
from toril.cli._target import Target
from toril.cli.demo import _dashboard_part, _spark_part
from toril.cli.demo._progress import print_fact, print_heading, show_progress
from toril.cli.demo._stream_part import StreamPart, remove_stream, run_stream_part
from toril.cli.demo._summary import (
    Report,
    WorkerPart,
    print_summary,
    print_tables,
    print_workers,
    worker_results,
)
from toril.cli.demo._worker_part import DemoQueues, Tally, measured, run_workers
from toril.cli.demo._workload import VIDEOS, planned_workload
from toril.errors import TorilError
from toril.transport import parse_address

_NOT_AS_PLANNED = "not every job had its planned outcome"


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    jobs: Annotated[
        int, typer.Option("--jobs", min=40, max=100_000, help="About how many jobs to add.")
    ] = 400,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Number of mails that are sent at the same time.")
    ] = 10,
    pace: Annotated[
        float, typer.Option("--pace", min=0.0, help="Factor for the duration of handlers; 0: no waiting.")
    ] = 1.0,
    scored: Annotated[
        int, typer.Option("--scored", min=1, max=1_000_000, help="Number of jobs that are scored on Spark.")
    ] = 5_000,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the tables and Spark.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the server and the dashboard until Ctrl-C.")
    ] = False,
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE", help="Where to write the page about the tables.")
    ] = Path("toril-demo-report.html"),
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show everything in two minutes: jobs, workers, a dashboard, tables and Spark, on a temporary server."""
    with _ends_on_sigterm(), _place(redis, quiet=as_json) as (url, folder):
        run = DemoRun(
            url=url,
            folder=folder,
            report=report,
            jobs=jobs,
            concurrency=concurrency,
            pace=pace,
            quiet=as_json,
        )
        with run.dashboard() as address:
            try:
                result = run.all_parts(quick=quick, scored=scored)
                _finish(result, keep_at=address if keep else None, as_json=as_json)
                if keep:
                    _wait(address)
            finally:
                run.clean_up(own_server=redis is None)


@dataclass(slots=True, kw_only=True)
class DemoRun:
    """One run of the demo on a server."""

    url: str
    folder: Path
    report: Path
    jobs: int
    concurrency: int
    pace: float
    quiet: bool
    prefix: str = field(default_factory=lambda: f"toril-demo-{uuid.uuid4().hex[:6]}")
    left_out: list[str] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @contextlib.contextmanager
    def dashboard(self) -> Iterator[str | None]:
        """Yields the address of the dashboard; None without the packages it needs."""
        if missing := _dashboard_part.missing_packages():
            self.left_out.append(f"the dashboard: {missing}")
            yield None
            return
        with _dashboard_part.running_dashboard(self.url, self.prefix, self.lake) as address:
            self._fact(f"dashboard  {address}  (open it while the demo runs)")
            yield address

    def all_parts(self, *, quick: bool, scored: int) -> Report:
        workers = asyncio.run(self._workers())
        stream = asyncio.run(self._stream())
        tables, scores = (None, None) if quick else self._tables_and_scores(scored)
        if quick:
            self.left_out.append("tables and Spark, by --quick")
        return Report(
            server=parse_address(self.url).label,
            workers=workers,
            stream=stream,
            tables=tables,
            scored=scores,
            left_out=self.left_out,
        )

    async def _workers(self) -> WorkerPart:
        workload = planned_workload(self.jobs, self.pace)
        tally = Tally(totals=workload.totals)
        async with DemoQueues(self.url, self.prefix, _silent_logger()).opened() as queues:
            self._heading(
                "2  Producers: priorities, delays, retries, flows, a schedule, groups, a poison job"
            )
            seconds = await measured(queues, workload)
            self._fact(
                f"{sum(tally.totals.values())} jobs on {len(tally.totals)} queues in {format_seconds(seconds)}"
            )
            self._heading(f"3  Workers: coroutines, threads, processes; one worker of {VIDEOS} is killed")
            began = time.monotonic()
            async with show_progress(tally, quiet=self.quiet):
                killed = await run_workers(queues, tally, self.concurrency, quiet=self.quiet)
            part = await worker_results(queues, workload, killed, seconds, time.monotonic() - began)
        if not self.quiet:
            print_workers(part)
        return part

    async def _stream(self) -> StreamPart:
        self._heading("4  A stream queue: dead letters and their replay")
        part = await run_stream_part(self.url, self.prefix, _silent_logger())
        self._fact(
            f"{part.jobs} jobs, {part.dead_letters} of them dead letters (the disk is full); the cause is removed, "
            f"{part.replayed} replayed, {part.completed} completed"
        )
        return part

    def _tables_and_scores(
        self, count: int
    ) -> tuple[_spark_part.TablesPart | None, _spark_part.ScoredPart | None]:
        if missing := _spark_part.missing_packages():
            self.left_out.append(f"tables and Spark: {missing}")
            return None, None
        self._heading("5  The pipeline: events become tables, figures, alerts and a report")
        no_java = _spark_part.missing_java()
        if no_java:
            self.left_out.append(f"jobs on Spark: {no_java}")
            self._fact(f"without Spark: {no_java}")
        else:
            self._fact("Spark starts (local, two cores) …")
        spark = None if no_java else _spark_part.start_spark()
        tables = _spark_part.make_tables(
            self.url, self.prefix, self.lake, self.report, spark, quiet=self.quiet
        )
        if not self.quiet:
            print_tables(tables)
        if spark is None:
            return tables, None
        self._heading("6  SparkWorker: the last batch of jobs is scored on Spark's executors")
        scored = _spark_part.score_on_spark(self.url, self.prefix, spark, count)
        spark.stop()
        self._fact(f"{scored.completed} of {scored.jobs} jobs completed in {format_seconds(scored.seconds)}")
        return tables, scored

    def clean_up(self, *, own_server: bool) -> None:
        """Removes the queues; those on the demo's own server end with it."""
        if own_server:
            return
        asyncio.run(self._remove_queues())
        _spark_part.remove_inference(self.url, self.prefix)

    async def _remove_queues(self) -> None:
        async with DemoQueues(self.url, self.prefix, _silent_logger()).opened() as queues:
            await queues.obliterate()
        await remove_stream(self.url, self.prefix)

    def _heading(self, text: str) -> None:
        print_heading(text, quiet=self.quiet)

    def _fact(self, text: str) -> None:
        print_fact(text, quiet=self.quiet)


@contextlib.contextmanager
def _place(redis: str | None, *, quiet: bool) -> Iterator[tuple[str, Path]]:
    """Yields the address of the server and a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="toril-demo-") as name:
        folder = Path(name)
        if redis is not None:
            target = Target.of(redis)
            _check_reachable(target.redis)
            print_heading("1  Server", quiet=quiet)
            print_fact(f"server     {target.server}", quiet=quiet)
            yield target.redis, folder
            return
        print_heading("1  Server", quiet=quiet)
        with _embedded_server(folder, quiet=quiet) as url:
            yield url, folder


@contextlib.contextmanager
def _embedded_server(folder: Path, *, quiet: bool) -> Iterator[str]:
    from toril.server import EmbeddedServer, stop

    began = time.monotonic()
    with EmbeddedServer(folder / "server") as server:
        if quiet:
            set_server_line(server.url)
        version, seconds = server.status().version, format_seconds(time.monotonic() - began)
        print_fact(f"server     Valkey {version} in {folder}, ready after {seconds}", quiet=quiet)
        try:
            yield server.url
        finally:
            # Spark forks this process, after which a release does not wait for the end of the server.
            stop(server.path)


def _check_reachable(url: str) -> None:
    with sync.Queue(VIDEOS, redis=url, skip_meta=True) as queue:
        queue.get_job_counts()


def _finish(report: Report, *, keep_at: str | None, as_json: bool) -> None:
    if as_json:
        emit({**asdict(report), "as_planned": report.as_planned, "rate": round(report.workers.rate, 1)})
    else:
        print_summary(report, dashboard=keep_at)
    if not report.as_planned:
        raise TorilError(_NOT_AS_PLANNED)


def _wait(address: str | None) -> None:
    print_heading(f"{address or 'The server'} stays until Ctrl-C", quiet=False)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, so that everything is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _silent_logger() -> logging.Logger:
    """Returns a logger without output: the demo prints its own progress."""
    logger = logging.getLogger("toril.demo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
