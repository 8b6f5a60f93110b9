"""`toril retry`: puts ended jobs, or dead letters, back into their queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

import typer

from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, JobsArgument, KeyOptions, QueueArgument
from toril.cli._output import print_result, progress_bar
from toril.cli._queue_operations import require_ids_or_all, run_for_each_job, run_on_queue
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound
from toril.producer import Queue
from toril.protocol.envelope import DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """Which jobs are retried, and how: a group of options (see `_option_groups`)."""

    everything: Annotated[
        bool, typer.Option("--all", help="All jobs, or all that match the other options.")
    ] = False
    state: Annotated[Literal["failed", "completed"], typer.Option("--state", help="State of the jobs.")] = (
        "failed"
    )
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only jobs whose error contains this text.")
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of jobs, oldest first.")
    ] = None
    timestamp: Annotated[
        datetime | None,
        typer.Option("--timestamp", help="Only jobs that ended before this time (UTC)."),
    ] = None
    rate: Annotated[float | None, typer.Option("--rate", help="Maximum number of jobs per second.")] = None
    reset_attempts: Annotated[
        bool, typer.Option("--reset-attempts", help="Jobs by id: count their attempts from the beginning.")
    ] = False

    @property
    def select_many(self) -> bool:
        """Whether jobs are selected by options, and not by id."""
        return self.everything or bool(self.name or self.reason or self.limit or self.timestamp)

    @property
    def until(self) -> datetime | None:
        """The time in UTC before which the jobs ended."""
        time = self.timestamp
        return None if time is None else time.replace(tzinfo=time.tzinfo or UTC)


def add_to(app: typer.Typer) -> None:
    app.command("retry")(with_option_groups(retry))


def retry(
    *,
    queue: QueueArgument,
    jobs: JobsArgument = None,
    options: RetryOptions,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Put ended jobs back into the queue, by id or all that match. On list and stream queues: dead letters."""
    where, target = QueueName.parse(queue), keys.target()
    require_ids_or_all(jobs, options.select_many)
    if options.reset_attempts and (not jobs or where.kind != "bullmq"):
        raise InvalidOption("--reset-attempts", "is for BullMQ jobs given by id", "give their ids")
    with progress_bar(f"retrying jobs of {queue}"):
        if where.kind != "bullmq":
            moved = asyncio.run(_replay(target, where, jobs or [], options))
        elif jobs:
            moved = run_for_each_job(target, queue, "retry", jobs, partial(_retry_one, options))
        else:
            moved = run_on_queue(target, queue, "retry", partial(_retry_many, options))
    print_result({"queue": queue, "retried": moved}, f"{moved} jobs go back to {queue}", as_json=as_json)


async def _retry_one(options: RetryOptions, queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job is None:
        raise JobNotFound(job_id, hint="see `toril inspect QUEUE --state failed`")
    reset = options.reset_attempts
    await job.retry(options.state, reset_attempts_made=reset, reset_attempts_started=reset)


async def _retry_many(options: RetryOptions, queue: Queue) -> int:
    return await queue.retry_jobs(
        state=options.state,
        limit=options.limit,
        timestamp=options.until,
        name=options.name,
        reason=options.reason,
        rate=options.rate,
    )


async def _replay(target: Target, where: QueueName, ids: list[str], options: RetryOptions) -> int:
    missing = set(ids)

    def matches(dead_letter: DeadLetter) -> bool:
        matching_ids = {dead_letter.job_id, dead_letter.entry_id} & set(ids)
        missing.difference_update(matching_ids)
        return (not ids or bool(matching_ids)) and _matches(options, dead_letter)

    async with target.envelopes(where) as queue:
        moved = await queue.replay(matches, rate=options.rate, limit=options.limit)
    if missing:
        raise JobNotFound(", ".join(sorted(missing)), hint=f"see `toril dlq list {where}`")
    return moved


def _matches(options: RetryOptions, dead_letter: DeadLetter) -> bool:
    return (
        (options.until is None or datetime.fromisoformat(dead_letter.dlq_ts) <= options.until)
        and (options.name is None or dead_letter.task_type == options.name)
        and (options.reason is None or options.reason in (dead_letter.last_error or ""))
    )
