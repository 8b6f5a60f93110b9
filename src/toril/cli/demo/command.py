"""`toril demo`: an embedded server, a producer and a worker, with retries and failures.

Guarantee: it needs only this package and removes everything it created; the exit code is 0 if every job had its planned
outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from typing import Annotated

import typer

from toril.cli._options import AsJson, RedisUrl
from toril.cli._output import emit, format_seconds, print_line, set_server_line, show
from toril.cli._target import Target
from toril.cli.demo._progress import show_progress
from toril.cli.demo._stream_part import StreamPart, run_stream_part
from toril.cli.demo._workload import QUEUE, DemoHandlers, Tally, expected_failures, planned_jobs
from toril.errors import TorilError
from toril.jobs import Job
from toril.producer import Queue
from toril.protocol.options import NewJob
from toril.protocol.state import JobCounts
from toril.transport import parse_address
from toril.worker import Worker

_NOT_AS_PLANNED = "not every job had its planned outcome"


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationSummary:
    """Median, 95th percentile and maximum of durations, in seconds."""

    median: float
    p95: float
    longest: float

    @classmethod
    def of(cls, values: list[float]) -> DurationSummary:
        if len(values) < 2:
            only = values[0] if values else 0.0
            return cls(median=only, p95=only, longest=only)
        cuts = quantiles(values, n=100, method="inclusive")
        return cls(median=cuts[49], p95=cuts[94], longest=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of the demo."""

    server: str
    jobs: int
    add_seconds: float
    run_seconds: float
    counts: dict[str, int]
    retries: int
    attempts: int
    failures: dict[str, int]
    waited: DurationSummary
    ran: DurationSummary
    as_planned: bool
    stream: StreamPart | None = None  # only on the demo's own server

    @property
    def rate(self) -> float:
        return self.jobs / self.run_seconds if self.run_seconds else 0.0


def demo(
    jobs: Annotated[int, typer.Option("--jobs", min=10, max=100_000, help="Number of jobs to add.")] = 300,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Number of jobs that run at the same time.")
    ] = 10,
    pace: Annotated[
        float, typer.Option("--pace", min=0.0, help="Factor for the duration of handlers; 0: no waiting.")
    ] = 1.0,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add and process sample jobs, on a temporary server unless --redis names one."""
    with _server(redis, quiet=as_json) as url:
        report = asyncio.run(_run(url, jobs, concurrency, pace, quiet=as_json))
        if redis is None:
            report = replace(report, stream=asyncio.run(run_stream_part(url, _silent_logger())))
    if as_json:
        emit({**asdict(report), "rate": round(report.rate, 1)})
    else:
        _print(report)
    if not report.as_planned or (report.stream is not None and not report.stream.as_planned):
        raise TorilError(_NOT_AS_PLANNED)


@contextlib.contextmanager
def _server(redis: str | None, *, quiet: bool) -> Iterator[str]:
    if redis is not None:
        yield Target.of(redis).redis
        return
    from toril.server import EmbeddedServer

    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="toril-demo-") as folder,
        EmbeddedServer(folder) as server,
    ):
        if quiet:
            set_server_line(server.url)
        else:
            version = server.status().version
            print_line(
                f"server    Valkey {version} in {folder}, ready after {format_seconds(time.monotonic() - started)}"
            )
        yield server.url


async def _run(url: str, count: int, concurrency: int, pace: float, *, quiet: bool) -> Report:
    tally = Tally()
    plan = planned_jobs(count)
    name = f"{QUEUE}-{uuid.uuid4().hex[:6]}"
    handlers = DemoHandlers(tally, pace)
    async with Queue(name, redis=url) as queue:
        try:
            started = time.monotonic()
            await queue.add_bulk(plan)
            added = time.monotonic()
            tally.added = len(plan)
            worker = Worker(
                name, handlers.handlers(), redis=url, concurrency=concurrency, logger=_silent_logger()
            )
            _count(worker, tally)
            if not quiet:
                print_line(f"producer  {len(plan)} jobs added in {format_seconds(added - started)}")
                print_line(f"worker    {worker.id}, {concurrency} jobs at the same time")
            async with show_progress(tally, quiet=quiet):
                await _finish(worker, tally)
            return await _report(
                queue, parse_address(url).label, plan, tally, added - started, time.monotonic() - added
            )
        finally:
            await queue.obliterate(force=True)


def _silent_logger() -> logging.Logger:
    """Returns a logger without output: the demo prints its own progress."""
    logger = logging.getLogger("toril.demo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _count(worker: Worker, tally: Tally) -> None:
    def counted(attribute: str) -> Callable[..., None]:
        return lambda *_: setattr(tally, attribute, getattr(tally, attribute) + 1)

    worker.on("completed", counted("completed"))
    worker.on("failed", counted("failed"))
    worker.on("retrying", counted("retried"))


async def _finish(worker: Worker, tally: Tally) -> None:
    """Runs the worker until every job has ended, also the delayed ones."""
    done = asyncio.Event()

    def check(*_: object) -> None:
        if tally.done >= tally.added:
            done.set()

    worker.on("completed", check)
    worker.on("failed", check)
    async with worker:
        await done.wait()


async def _report(
    queue: Queue, server: str, plan: list[NewJob], tally: Tally, add_seconds: float, run_seconds: float
) -> Report:
    counts = await queue.get_job_counts()
    ended = await queue.get_jobs(["completed", "failed"])
    failures: dict[str, int] = {}
    for job in ended:
        if job.finished_on is not None and job.failed_reason and job.name == "import":
            reason = job.failed_reason.partition(" ")[2]
            failures[reason] = failures.get(reason, 0) + 1
    return Report(
        server=server,
        jobs=len(plan),
        add_seconds=add_seconds,
        run_seconds=run_seconds,
        counts=counts.as_dict(),
        retries=tally.retried,
        attempts=sum(job.attempts_made for job in ended),
        failures=failures,
        waited=DurationSummary.of([_waited(job) for job in ended]),
        ran=DurationSummary.of([_run_seconds(job) for job in ended]),
        as_planned=_as_planned(counts, plan),
    )


def _waited(job: Job) -> float:
    """Returns the seconds between the time a job was due and the start of its last attempt."""
    begun = job.processed_on
    return 0.0 if begun is None else max(0.0, (begun - job.timestamp).total_seconds() - job.delay)


def _run_seconds(job: Job) -> float:
    begun, ended = job.processed_on, job.finished_on
    return (ended - begun).total_seconds() if begun is not None and ended is not None else 0.0


def _as_planned(counts: JobCounts, plan: list[NewJob]) -> bool:
    wrong = expected_failures(plan)
    return counts.completed == len(plan) - wrong and counts.failed == wrong and counts.unfinished == 0


def _print(report: Report) -> None:
    counts = {state: number for state, number in report.counts.items() if number}
    print_line("")
    show(
        ["what", "how many", "time", "median", "95 %", "longest"],
        [
            ("added", report.jobs, format_seconds(report.add_seconds), "", "", ""),
            ("processed", sum(counts.values()), format_seconds(report.run_seconds), "", "", ""),
            *((f"  {state}", number, "", "", "", "") for state, number in sorted(counts.items())),
            ("  attempts", report.attempts, "", "", "", ""),
            ("  retries", report.retries, "", "", "", ""),
            _spread("waiting", report.jobs, report.waited),
            _spread("running", report.jobs, report.ran),
        ],
        right=["how many", "time", "median", "95 %", "longest"],
    )
    for reason, number in report.failures.items():
        print_line(f"{number} failed for good: {reason}")
    if report.stream is not None:
        stream = report.stream
        print_line(
            f"then a stream queue: {stream.jobs} jobs, {stream.dead_letters} of them dead letters, "
            f"{stream.replayed} replayed, {stream.completed} completed in the end"
        )
    print_line(f"{report.rate:.0f} jobs per second; every job had its planned outcome")
    print_line(
        'next: `toril add emails send --data \'{"to": "a@b.c"}\'`, `toril queues`, `toril worker --help`'
    )


def _spread(what: str, count: int, spread: DurationSummary) -> tuple[object, ...]:
    return (
        what,
        count,
        "",
        format_seconds(spread.median),
        format_seconds(spread.p95),
        format_seconds(spread.longest),
    )
