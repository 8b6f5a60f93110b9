"""`toril promote`: makes delayed jobs ready now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from toril.cli._options import AsJson, Env, JobsArgument, Prefix, QueueArgument, RedisUrl
from toril.cli._output import print_result
from toril.cli._queue_operations import require_ids_or_all, run_for_each_job, run_on_queue
from toril.cli._target import QueueName, Target
from toril.errors import JobNotFound, TorilError
from toril.producer import Queue


def add_to(app: typer.Typer) -> None:
    app.command("promote")(promote)


def promote(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All delayed jobs.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of jobs, in the order of their time.")
    ] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Make delayed jobs ready to run now."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    require_ids_or_all(jobs, everything or limit is not None)
    if where.kind != "bullmq":
        moved = asyncio.run(_promote_envelopes(target, where, jobs, limit))
    elif jobs:
        moved = run_for_each_job(target, queue, "promote", jobs, _promote_one)
    else:
        moved = run_on_queue(target, queue, "promote", lambda one: one.promote_jobs(limit=limit))
    print_result({"queue": queue, "promoted": moved}, f"{moved} jobs are ready", as_json=as_json)


async def _promote_envelopes(
    target: Target, where: QueueName, jobs: list[str] | None, limit: int | None
) -> int:
    async with target.envelopes(where) as queue:
        moved = await queue.promote(jobs, limit=limit)
    if jobs and moved < len(set(jobs)):
        missing = len(set(jobs)) - moved
        raise TorilError(f"{missing} of these jobs are not delayed; see `toril inspect {where}`")
    return moved


async def _promote_one(queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job is None:
        raise JobNotFound(job_id, hint="see `toril inspect QUEUE --state delayed`")
    await job.promote()
