"""`toril retry`: puts ended jobs, or dead letters, back into their queue."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from toril.cli._options import AsJson, Env, JobsArgument, Prefix, QueueArgument, RedisUrl
from toril.cli._output import print_result, progress_bar
from toril.cli._queue_operations import require_ids_or_all, run_for_each_job, run_on_queue
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound
from toril.producer import Queue


def add_to(app: typer.Typer) -> None:
    app.command("retry")(retry)


def retry(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All jobs, or all that match the other options.")
    ] = False,
    state: Annotated[
        Literal["failed", "completed"], typer.Option("--state", help="State of the jobs.")
    ] = "failed",
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only jobs whose error contains this text.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of jobs, oldest first.")
    ] = None,
    timestamp: Annotated[
        datetime | None,
        typer.Option("--timestamp", help="Only jobs that ended before this time (UTC)."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Maximum number of jobs per second.")] = None,
    reset_attempts: Annotated[
        bool, typer.Option("--reset-attempts", help="Jobs by id: count their attempts from the beginning.")
    ] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Put ended jobs back into the queue, by id or all that match. On list and stream queues: dead letters."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    require_ids_or_all(jobs, everything or bool(name or reason or limit or timestamp))
    if reset_attempts and (not jobs or where.kind != "bullmq"):
        raise InvalidOption("--reset-attempts", "is for BullMQ jobs given by id", "give their ids")
    until = None if timestamp is None else timestamp.replace(tzinfo=timestamp.tzinfo or UTC)
    with progress_bar(f"retrying jobs of {queue}"):
        if where.kind != "bullmq":
            moved = asyncio.run(_replay(target, where, jobs or [], until, name, reason, limit, rate))
        elif jobs:
            moved = run_for_each_job(
                target,
                queue,
                "retry",
                jobs,
                lambda one, job_id: _retry_one(one, job_id, state, reset_attempts),
            )
        else:
            moved = run_on_queue(
                target,
                queue,
                "retry",
                lambda one: one.retry_jobs(
                    state=state, limit=limit, timestamp=until, name=name, reason=reason, rate=rate
                ),
            )
    print_result({"queue": queue, "retried": moved}, f"{moved} jobs go back to {queue}", as_json=as_json)


async def _retry_one(
    queue: Queue, job_id: str, state: Literal["failed", "completed"], reset_attempts: bool
) -> None:
    job = await queue.get_job(job_id)
    if job is None:
        raise JobNotFound(job_id, hint="see `toril inspect QUEUE --state failed`")
    await job.retry(state, reset_attempts_made=reset_attempts, reset_attempts_started=reset_attempts)


async def _replay(
    target: Target,
    where: QueueName,
    ids: list[str],
    until: datetime | None,
    name: str | None,
    reason: str | None,
    limit: int | None,
    rate: float | None,
) -> int:
    missing = set(ids)

    def matches(dead_letter: Any) -> bool:
        matching_ids = {dead_letter.job_id, dead_letter.entry_id} & set(ids)
        missing.difference_update(matching_ids)
        return (
            (not ids or bool(matching_ids))
            and (until is None or datetime.fromisoformat(dead_letter.dlq_ts) <= until)
            and (name is None or dead_letter.task_type == name)
            and (reason is None or reason in (dead_letter.last_error or ""))
        )

    async with target.envelopes(where) as queue:
        moved = await queue.replay(matches, rate=rate, limit=limit)
    if missing:
        raise JobNotFound(", ".join(sorted(missing)), hint=f"see `toril dlq list {where}`")
    return moved
