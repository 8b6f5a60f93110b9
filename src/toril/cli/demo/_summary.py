"""The results of the demo, as a value and as text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from toril.cli._output import format_seconds, print_line, show
from toril.cli.demo._progress import print_fact, print_heading
from toril.cli.demo._spark_part import ScoredPart, TablesPart
from toril.cli.demo._stream_part import StreamPart
from toril.cli.demo._worker_part import DemoQueues, KilledWorker
from toril.cli.demo._workload import DIGEST, EMAILS, TENANTS, TRANSCODE, Workload
from toril.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationSummary:
    """Median, 95th percentile and maximum of durations, in seconds."""

    median: float
    p95: float
    longest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> DurationSummary:
        if len(values) < 2:
            only = values[0] if values else 0.0
            return cls(median=only, p95=only, longest=only)
        cuts = quantiles(values, n=100, method="inclusive")
        return cls(median=cuts[49], p95=cuts[94], longest=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonJob:
    """The job that ends the process that runs it."""

    attempts: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPart:
    """The results of the first part."""

    jobs: int
    add_seconds: float
    run_seconds: float
    counts: dict[str, dict[str, int]]  # completed and failed by queue
    retries: int
    flows: int
    scheduled: int
    tenants: dict[str, int]
    killed: KilledWorker
    poison: PoisonJob
    waited: DurationSummary
    ran: DurationSummary
    as_planned: bool

    @property
    def rate(self) -> float:
        return self.jobs / self.run_seconds if self.run_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of the demo."""

    server: str
    workers: WorkerPart
    stream: StreamPart
    tables: TablesPart | None = None
    scored: ScoredPart | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def as_planned(self) -> bool:
        scored = self.scored is None or self.scored.as_planned
        return self.workers.as_planned and self.stream.as_planned and scored


async def worker_results(
    queues: DemoQueues, workload: Workload, killed: KilledWorker, add_seconds: float, run_seconds: float
) -> WorkerPart:
    """Reads the results of all jobs of the first part."""
    jobs: dict[str, list[Job]] = {}
    counts = {}
    for name, queue in queues.queues.items():
        found = await queue.get_job_counts()
        counts[name] = {"completed": found.completed, "failed": found.failed}
        jobs[name] = await queue.get_jobs(["completed", "failed"])
    ended = [job for found in jobs.values() for job in found]
    expected = {
        name: {"completed": completed, "failed": failed}
        for name, (completed, failed) in workload.expected.items()
    }
    return WorkerPart(
        jobs=len(ended),
        add_seconds=add_seconds,
        run_seconds=run_seconds,
        counts=counts,
        retries=sum(job.attempts_made - 1 for job in ended),
        flows=len(workload.flows),
        scheduled=sum(job.name == DIGEST for job in jobs[EMAILS]),
        tenants={name: sum(job.group == name for job in jobs[EMAILS]) for name in TENANTS},
        killed=killed,
        poison=_poison(jobs[TRANSCODE]),
        waited=DurationSummary.of([_waited(job) for job in ended]),
        ran=DurationSummary.of([_ran(job) for job in ended]),
        as_planned=counts == expected and killed.completed == killed.jobs,
    )


def _poison(jobs: Sequence[Job]) -> PoisonJob:
    job = next(job for job in jobs if job.data["poison"])
    return PoisonJob(attempts=job.attempts_made, reason=job.failed_reason or "")


def _waited(job: Job) -> float:
    """Returns the seconds between the time a job was due and the start of its last attempt."""
    begun = job.processed_on
    return 0.0 if begun is None else max(0.0, (begun - job.timestamp).total_seconds() - job.delay)


def _ran(job: Job) -> float:
    begun, ended = job.processed_on, job.finished_on
    return (ended - begun).total_seconds() if begun is not None and ended is not None else 0.0


def print_workers(part: WorkerPart) -> None:
    """Prints the counts of the queues."""
    show(
        ["   queue", "completed", "failed"],
        [(f"   {name}", one["completed"], one["failed"]) for name, one in part.counts.items()],
        right=["completed", "failed"],
    )
    for what, spread in (("waiting", part.waited), ("running", part.ran)):
        seconds = (format_seconds(one) for one in (spread.median, spread.p95, spread.longest))
        print_fact("{}: median {}, 95 % below {}, longest {}".format(what, *seconds), quiet=False)


def print_tables(part: TablesPart) -> None:
    """Prints figures, errors and alerts."""
    where = "on Spark" if part.engine == "spark" else "in this process"
    rows = part.rows
    print_fact(
        f"{part.events} events → {rows.get('silver/attempts', 0)} attempts of {rows.get('silver/jobs', 0)} jobs → "
        f"figures, {where}, in {format_seconds(part.seconds)}",
        quiet=False,
    )
    columns = ["attempts", "completed", "failed", "retried", "stalled"]
    show(
        ["   queue", *columns, "waiting, 95 %", "running, 95 %"],
        [
            (
                f"   {row['queue']}",
                *(row[column] for column in columns),
                _milliseconds(row["wait_p95_ms"]),
                _milliseconds(row["run_p95_ms"]),
            )
            for row in part.figures
        ],
        right=[*columns, "waiting, 95 %", "running, 95 %"],
    )
    for row in part.errors:
        print_fact(f"error    {row['queue']}: {row['pattern']} ({row['errors']} times)", quiet=False)
    for row in part.alerts:
        print_fact(
            f"alert    {row['queue']}: {row['message']} ({row['value']:.0%}, threshold {row['threshold']:.0%})",
            quiet=False,
        )
    print_fact(f"report   {part.report}", quiet=False)


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else format_seconds(value / 1000)


def print_summary(report: Report, *, dashboard: str | None) -> None:
    """Prints what happened, what was left out, and what to type next."""
    part, killed = report.workers, report.workers.killed
    print_heading("What you saw", quiet=False)
    failed = sum(one["failed"] for one in part.counts.values())
    lines = [
        (
            f"{part.jobs} jobs processed in {format_seconds(part.run_seconds)}; {failed} failed as planned, "
            f"{part.retries} attempts were retried"
        ),
        (
            f"{part.flows} flows, whose parents ran after their children; {part.scheduled} runs of a schedule; "
            f"{len(part.tenants)} tenants served in turns"
        ),
        (
            f"a worker was killed with {killed.jobs} running jobs: they ran again on another one "
            f"{format_seconds(killed.seconds)} later"
        ),
        "a poison job ended the process that ran it, and failed at once; the jobs beside it completed",
        (
            f"a stream queue with {report.stream.jobs} jobs: {report.stream.dead_letters} dead letters, replayed "
            "and completed"
        ),
    ]
    if report.tables is not None:
        tables = report.tables
        lines.append(
            f"{tables.events} events as Delta tables; alerts: {len(tables.alerts)}; the report: {tables.report}"
        )
    if report.scored is not None:
        scored = report.scored
        lines.append(
            f"{scored.completed} jobs scored as Arrow tables on Spark's executors in {format_seconds(scored.seconds)}"
        )
    for line in lines:
        print_fact(f"✓ {line}" if report.as_planned else f"- {line}", quiet=False)
    for reason in report.left_out:
        print_fact(f"left out: {reason}", quiet=False)
    print_heading("What to type next", quiet=False)
    _print_next(dashboard=dashboard)


def _print_next(*, dashboard: str | None) -> None:
    commands = [
        (
            'toril add emails send --data \'{"to": "a@b.c"}\'',
            "add a job; an embedded server starts in ./.toril",
        ),
        ("toril top", "watch queues and workers"),
        ("toril worker --help", "process jobs with your own functions"),
        ("toril --help", "all commands"),
    ]
    if dashboard is None:
        commands.insert(0, ("toril demo --keep", "the same, and the dashboard stays open"))
    if activation := _activation():
        commands.insert(0, (activation, "so that your shell finds toril"))
    width = max(len(command) for command, _ in commands)
    for command, meaning in commands:
        print_line(f"   {command:<{width}}   {meaning}")


def _activation() -> str | None:
    """How to activate the virtual environment of this process, unless it is active."""
    if sys.prefix in (sys.base_prefix, os.environ.get("VIRTUAL_ENV")):
        return None
    script, here = Path(sys.prefix, "bin", "activate"), Path.cwd()
    return f"source {script.relative_to(here) if script.is_relative_to(here) else script}"
