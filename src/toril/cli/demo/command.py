"""`toril demo`: an embedded server, a producer, a worker; retries and failures included.

Guarantee: it needs nothing but this package, leaves nothing behind, and its exit code says whether every job had the
fate that was planned for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from typing import Annotated, Any

import typer

from toril.cli._options import AsJson, RedisUrl
from toril.cli._output import emit, print_server_first, say, seconds, show
from toril.cli._target import Target
from toril.cli.demo._progress import drawn
from toril.cli.demo._stream_part import StreamPart, play
from toril.cli.demo._workload import QUEUE, DemoHandlers, Tally, expected_failures, written
from toril.errors import TorilError
from toril.jobs import Job
from toril.producer import Queue
from toril.protocol.state import JobCounts
from toril.worker import Worker

_REFUSED = "not every job had the fate that was planned for it"


def add_to(app: typer.Typer) -> None:
    app.command("demo")(demo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle, the slow end and the slowest of some durations, in seconds."""

    median: float
    p95: float
    longest: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        if len(values) < 2:
            only = values[0] if values else 0.0
            return cls(median=only, p95=only, longest=only)
        cuts = quantiles(values, n=100, method="inclusive")
        return cls(median=cuts[49], p95=cuts[94], longest=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the demo went."""

    server: str
    jobs: int
    add_seconds: float
    run_seconds: float
    counts: dict[str, int]
    retries: int
    attempts: int
    failures: dict[str, int]
    waited: Spread
    ran: Spread
    as_planned: bool
    stream: StreamPart | None = None  # on a server of our own

    @property
    def rate(self) -> float:
        return self.jobs / self.run_seconds if self.run_seconds else 0.0


def demo(
    jobs: Annotated[int, typer.Option("--jobs", min=10, max=100_000, help="How many jobs to add.")] = 300,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Jobs at the same time.")] = 10,
    pace: Annotated[
        float, typer.Option("--pace", min=0.0, help="Stretches the handlers' work; 0: none at all.")
    ] = 1.0,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Watch jobs being added and processed, on a server of its own unless --redis names one."""
    with _server(redis, quiet=as_json) as url:
        report = asyncio.run(_play(url, jobs, concurrency, pace, quiet=as_json))
        if redis is None:
            report = replace(report, stream=asyncio.run(play(url, _silent_logger())))
    if as_json:
        emit({**asdict(report), "rate": round(report.rate, 1)})
    else:
        _print(report)
    if not report.as_planned or (report.stream is not None and not report.stream.as_planned):
        raise TorilError(_REFUSED)


@contextlib.contextmanager
def _server(redis: str | None, *, quiet: bool) -> Iterator[str]:
    if redis is not None:
        yield Target.of(redis).redis
        return
    from toril.server import EmbeddedServer

    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="toril-demo-") as folder,
        EmbeddedServer(folder) as server,
    ):
        if quiet:
            print_server_first(server.url)
        else:
            version = server.status().version
            say(f"server    Valkey {version} in {folder}, ready after {seconds(time.monotonic() - began)}")
        yield server.url


async def _play(url: str, count: int, concurrency: int, pace: float, *, quiet: bool) -> Report:
    tally = Tally()
    plan = written(count)
    name = f"{QUEUE}-{uuid.uuid4().hex[:6]}"
    clerk = DemoHandlers(tally, pace)
    async with Queue(name, redis=url) as queue:
        try:
            began = time.monotonic()
            await queue.add_bulk(plan)
            added = time.monotonic()
            tally.added = len(plan)
            worker = Worker(
                name, clerk.handlers(), redis=url, concurrency=concurrency, logger=_silent_logger()
            )
            _count(worker, tally)
            if not quiet:
                say(f"producer  {len(plan)} jobs added in {seconds(added - began)}")
                say(f"worker    {worker.id}, {concurrency} jobs at the same time")
            async with drawn(tally, quiet=quiet):
                await _finish(worker, tally)
            return await _report(queue, plan, tally, added - began, time.monotonic() - added)
        finally:
            await queue.obliterate(force=True)


def _silent_logger() -> logging.Logger:
    """The demo tells by itself what happens; the worker's own lines would say it twice."""
    logger = logging.getLogger("toril.demo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def _count(worker: Worker, tally: Tally) -> None:
    def counted(attribute: str) -> Any:
        return lambda *_: setattr(tally, attribute, getattr(tally, attribute) + 1)

    worker.on("completed", counted("completed"))
    worker.on("failed", counted("failed"))
    worker.on("retrying", counted("retried"))


async def _finish(worker: Worker, tally: Tally) -> None:
    """Runs the worker until every job has ended, those that were delayed included."""
    over = asyncio.Event()

    def look(*_: object) -> None:
        if tally.done >= tally.added:
            over.set()

    worker.on("completed", look)
    worker.on("failed", look)
    async with worker:
        await over.wait()


async def _report(
    queue: Queue, plan: list[Any], tally: Tally, add_seconds: float, run_seconds: float
) -> Report:
    counts = await queue.get_job_counts()
    ended = await queue.get_jobs(["completed", "failed"])
    failures: dict[str, int] = {}
    for job in ended:
        if job.finished_on is not None and job.failed_reason and job.name == "import":
            reason = job.failed_reason.partition(" ")[2]
            failures[reason] = failures.get(reason, 0) + 1
    return Report(
        server=queue._transport.address.label,  # noqa: SLF001  # the label has no secrets
        jobs=len(plan),
        add_seconds=add_seconds,
        run_seconds=run_seconds,
        counts=counts.as_dict(),
        retries=tally.retried,
        attempts=sum(job.attempts_made for job in ended),
        failures=failures,
        waited=Spread.of([_waited(job) for job in ended]),
        ran=Spread.of([_ran(job) for job in ended]),
        as_planned=_as_planned(counts, plan),
    )


def _waited(job: Job) -> float:
    """Seconds between the moment the job was due and the last pickup."""
    begun = job.processed_on
    return 0.0 if begun is None else max(0.0, (begun - job.timestamp).total_seconds() - job.delay)


def _ran(job: Job) -> float:
    begun, ended = job.processed_on, job.finished_on
    return (ended - begun).total_seconds() if begun is not None and ended is not None else 0.0


def _as_planned(counts: JobCounts, plan: list[Any]) -> bool:
    wrong = expected_failures(plan)
    return counts.completed == len(plan) - wrong and counts.failed == wrong and counts.unfinished == 0


def _print(report: Report) -> None:
    counts = {state: number for state, number in report.counts.items() if number}
    say("")
    show(
        ["what", "how many", "time", "median", "95 %", "longest"],
        [
            ("added", report.jobs, seconds(report.add_seconds), "", "", ""),
            ("processed", sum(counts.values()), seconds(report.run_seconds), "", "", ""),
            *((f"  {state}", number, "", "", "", "") for state, number in sorted(counts.items())),
            ("  attempts", report.attempts, "", "", "", ""),
            ("  retries", report.retries, "", "", "", ""),
            _spread("waiting", report.jobs, report.waited),
            _spread("running", report.jobs, report.ran),
        ],
        right=["how many", "time", "median", "95 %", "longest"],
    )
    for reason, number in report.failures.items():
        say(f"{number} failed for good: {reason}")
    if report.stream is not None:
        act = report.stream
        say(
            f"then a stream queue: {act.jobs} jobs, {act.dead_letters} of them dead letters, "
            f"{act.replayed} replayed, {act.completed} completed in the end"
        )
    say(f"{report.rate:.0f} jobs per second; every job had the fate that was planned for it")
    say('next: `toril add emails send --data \'{"to": "a@b.c"}\'`, `toril queues`, `toril worker --help`')


def _spread(what: str, count: int, spread: Spread) -> tuple[object, ...]:
    return what, count, "", seconds(spread.median), seconds(spread.p95), seconds(spread.longest)
