"""`toril remove`: removes single jobs or a whole queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from toril.cli._confirm import confirm
from toril.cli._options import AsJson, Env, JobsArgument, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import print_result, progress_bar
from toril.cli._queue_operations import raise_first, require_ids_or_all
from toril.cli._target import AnyQueue, QueueName, Target
from toril.errors import JobNotFound, MalformedValue, TorilError
from toril.producer import Queue


def add_to(app: typer.Typer) -> None:
    app.command("remove")(remove)


def remove(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole queue with all its jobs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --all: even if jobs are running.")] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove jobs and their children, or with --all the whole queue."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    require_ids_or_all(jobs, everything)
    if jobs:
        confirm(f"Remove {len(jobs)} jobs of {queue}?", yes=yes)
        removed = asyncio.run(_remove_each(target, where, jobs))
        print_result({"queue": queue, "removed": removed}, f"{removed} jobs removed", as_json=as_json)
        return
    confirm(f"Remove the queue {queue} with all its jobs?", yes=yes)
    with progress_bar(f"removing {queue}"):
        asyncio.run(_obliterate(target, where, force=force))
    print_result({"queue": queue, "removed": "all"}, f"{queue} is removed", as_json=as_json)


async def _remove_each(target: Target, where: QueueName, jobs: list[str]) -> int:
    """Returns the number of removed jobs; if some could not be removed, the first error is raised after the last."""
    removed, errors = 0, list[TorilError]()
    async with target.open(where) as queue:
        for job_id in jobs:
            try:
                if not await _is_removed(queue, job_id):
                    raise JobNotFound(job_id, hint=_HINTS[where.kind])
                removed += 1
            except TorilError as error:
                errors.append(error)
    raise_first(errors)
    return removed


_HINTS = {
    "bullmq": "see `toril inspect QUEUE`",
    "list": "only delayed and dead jobs of a list can be removed one by one",
    "stream": "only delayed and dead jobs of a stream can be removed one by one",
}


async def _is_removed(queue: AnyQueue, job_id: str) -> bool:
    if not isinstance(queue, Queue):
        return await queue.remove(job_id)
    with suppress(MalformedValue):  # what stands under its key is no job: it is removed all the same
        if await queue.get_job(job_id) is None:
            return False
    await queue.remove(job_id)
    return True


async def _obliterate(target: Target, where: QueueName, *, force: bool) -> None:
    async with target.open(where, read_only=True) as queue:
        if isinstance(queue, Queue):
            await queue.obliterate(force=force)
        else:
            await queue.obliterate()
