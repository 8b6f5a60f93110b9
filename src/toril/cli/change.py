"""What changes queues and jobs: pause, resume, drain, clean, retry, promote, remove, cancel.

Guarantee: what destroys jobs asks first, or needs `--yes`; without a terminal and without `--yes` it does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from toril.cli._completion import complete_job, complete_state
from toril.cli._confirm import ask
from toril.cli._options import AsJson, BullmqArgument, Env, JobArgument, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import emit, in_progress, say, warn
from toril.cli._target import AnyQueue, QueueName, Target
from toril.errors import InvalidOption, JobNotFound, TorilError
from toril.producer import Queue

JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids of jobs.", autocompletion=complete_job, show_default=False),
]


def add_to(app: typer.Typer) -> None:
    for command in (pause, resume, drain, clean, retry, promote, remove, cancel):
        app.command(command.__name__)(command)


def _on(target: Target, queue: str, command: str, act: Callable[[Queue], Awaitable[Any]]) -> Any:
    where = QueueName.parse(queue)

    async def run() -> Any:
        async with target.bullmq(where, command) as opened:
            return await act(opened)

    return asyncio.run(run())


def _done(facts: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        emit(facts)
    else:
        say(line)


def pause(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """Let all workers leave the queue alone; jobs that run go on."""
    _on(Target.of(redis, prefix), queue, "pause", lambda one: one.pause())
    _done({"queue": queue, "paused": True}, f"{queue} is paused", as_json=as_json)


def resume(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """Let workers take jobs of the queue again."""
    _on(Target.of(redis, prefix), queue, "resume", lambda one: one.resume())
    _done({"queue": queue, "paused": False}, f"{queue} is running", as_json=as_json)


def drain(
    queue: QueueArgument,
    delayed: Annotated[bool, typer.Option("--delayed", help="Remove delayed jobs as well.")] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove all jobs that wait; those that run, those that ended and the next runs of schedulers stay."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    ask(f"Remove all waiting{' and delayed' if delayed else ''} jobs of {queue}?", yes=yes)
    with in_progress(f"draining {queue}"):
        removed = asyncio.run(_drain(target, where, delayed=delayed))
    _done({"queue": queue, "removed": removed}, f"{removed} jobs removed", as_json=as_json)


async def _drain(target: Target, where: QueueName, *, delayed: bool) -> int:
    async with target.open(where) as queue:
        return await queue.drain(delayed=delayed)


def clean(
    queue: BullmqArgument,
    state: Annotated[
        str,
        typer.Option(
            "--state", help="completed, failed, delayed, waiting, active, …", autocompletion=complete_state
        ),
    ] = "completed",
    older_than: Annotated[float, typer.Option("--older-than", min=0, help="Seconds since they ended.")] = 0.0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 0,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Remove old jobs of one state."""
    ask(f"Remove {state} jobs of {queue} that are older than {older_than:g} s?", yes=yes)
    with in_progress(f"cleaning {queue}"):
        ids = _on(Target.of(redis, prefix), queue, "clean", lambda one: one.clean(older_than, limit, state))
    _done({"queue": queue, "removed": ids}, f"{len(ids)} jobs removed", as_json=as_json)


def retry(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, or those chosen below.")] = False,
    state: Annotated[
        Literal["failed", "completed"], typer.Option("--state", help="Which ended jobs.")
    ] = "failed",
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only those whose reason contains this.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")
    ] = None,
    timestamp: Annotated[
        datetime | None,
        typer.Option("--timestamp", help="Only jobs that ended up to then, in UTC."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="At most so many in a second.")] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Send ended jobs back to the queue: some by id, or all that match. On list and stream queues: dead letters."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    _one_or_all(jobs, everything or bool(name or reason or limit or timestamp))
    until = None if timestamp is None else timestamp.replace(tzinfo=timestamp.tzinfo or UTC)
    with in_progress(f"retrying jobs of {queue}"):
        if where.kind != "bullmq":
            moved = asyncio.run(_replay(target, where, jobs or [], until, name, reason, limit, rate))
        elif jobs:
            moved = _each(target, queue, "retry", jobs, lambda one, job_id: _retry_one(one, job_id, state))
        else:
            moved = _on(
                target,
                queue,
                "retry",
                lambda one: one.retry_jobs(
                    state=state, limit=limit, timestamp=until, name=name, reason=reason, rate=rate
                ),
            )
    _done({"queue": queue, "retried": moved}, f"{moved} jobs go back to {queue}", as_json=as_json)


async def _retry_one(queue: Queue, job_id: str, state: Literal["failed", "completed"]) -> None:
    job = await queue.get_job(job_id)
    if job is None:
        raise JobNotFound(job_id, hint="see `toril inspect QUEUE --state failed`")
    await job.retry(state)


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

    def wanted(letter: Any) -> bool:
        named = {letter.job_id, letter.entry_id} & set(ids)
        missing.difference_update(named)
        return (
            (not ids or bool(named))
            and (until is None or datetime.fromisoformat(letter.dlq_ts) <= until)
            and (name is None or letter.task_type == name)
            and (reason is None or reason in (letter.last_error or ""))
        )

    async with target.envelopes(where) as queue:
        moved = await queue.replay(wanted, rate=rate, limit=limit)
    if missing:
        raise JobNotFound(", ".join(sorted(missing)), hint=f"see `toril dlq list {where}`")
    return moved


def promote(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All delayed jobs.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many, those that are due first.")
    ] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Make delayed jobs ready now."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    _one_or_all(jobs, everything or limit is not None)
    if where.kind != "bullmq":
        moved = asyncio.run(_promote_envelopes(target, where, jobs, limit))
    elif jobs:
        moved = _each(target, queue, "promote", jobs, _promote_one)
    else:
        moved = _on(target, queue, "promote", lambda one: one.promote_jobs(limit=limit))
    _done({"queue": queue, "promoted": moved}, f"{moved} jobs are ready", as_json=as_json)


async def _promote_envelopes(
    target: Target, where: QueueName, jobs: list[str] | None, limit: int | None
) -> int:
    async with target.envelopes(where) as queue:
        moved = await queue.promote(jobs, limit=limit)
    if jobs and moved < len(set(jobs)):
        missed = len(set(jobs)) - moved
        raise TorilError(f"{missed} of these jobs do not wait for their time; see `toril inspect {where}`")
    return moved


async def _promote_one(queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    if job is None:
        raise JobNotFound(job_id, hint="see `toril inspect QUEUE --state delayed`")
    await job.promote()


def remove(
    queue: QueueArgument,
    jobs: JobsArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The whole queue, with everything in it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --all: also while jobs run.")] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove jobs and their children, or with --all the whole queue."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    _one_or_all(jobs, everything)
    if jobs:
        ask(f"Remove {len(jobs)} jobs of {queue}?", yes=yes)
        removed = asyncio.run(_remove_each(target, where, jobs))
        _done({"queue": queue, "removed": removed}, f"{removed} jobs removed", as_json=as_json)
        return
    ask(f"Remove the queue {queue} with all its jobs?", yes=yes)
    with in_progress(f"removing {queue}"):
        asyncio.run(_obliterate(target, where, force=force))
    _done({"queue": queue, "removed": "all"}, f"{queue} is gone", as_json=as_json)


async def _remove_each(target: Target, where: QueueName, jobs: list[str]) -> int:
    """Each job that is there; the first refusal is raised when all had their turn."""
    removed, refusals = 0, list[TorilError]()
    async with target.open(where) as queue:
        for job_id in jobs:
            try:
                if not await _is_removed(queue, job_id):
                    raise JobNotFound(job_id, hint=_WHERE_JOBS_ARE[where.kind])
                removed += 1
            except TorilError as error:
                refusals.append(error)
    _raise_first(refusals)
    return removed


_WHERE_JOBS_ARE = {
    "bullmq": "see `toril inspect QUEUE`",
    "list": "only delayed and dead jobs of a list can be removed one by one",
    "stream": "only delayed and dead jobs of a stream can be removed one by one",
}


async def _is_removed(queue: AnyQueue, job_id: str) -> bool:
    if not isinstance(queue, Queue):
        return await queue.remove(job_id)
    if await queue.get_job(job_id) is None:
        return False
    await queue.remove(job_id)
    return True


async def _obliterate(target: Target, where: QueueName, *, force: bool) -> None:
    async with target.open(where, look=True) as queue:
        if isinstance(queue, Queue):
            await queue.obliterate(force=force)
        else:
            await queue.obliterate()


def cancel(
    queue: BullmqArgument,
    job: JobArgument,
    reason: Annotated[str, typer.Option("--reason", help="What the job fails with.")] = "cancelled",
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """End a job before its time: one that waits is removed, one that runs is stopped by its worker."""
    ask(f"Cancel job {job} of {queue}?", yes=yes)
    what = _on(Target.of(redis, prefix), queue, "cancel", lambda one: one.cancel(job, reason))
    line = "removed: it had not begun" if what == "removed" else "its worker was asked to stop it"
    _done({"queue": queue, "job": job, "outcome": what}, line, as_json=as_json)


def _one_or_all(jobs: list[str] | None, everything: bool) -> None:
    if bool(jobs) == everything:
        raise InvalidOption("jobs", "say which", "give ids of jobs, or --all")


def _each(
    target: Target,
    queue: str,
    command: str,
    jobs: list[str],
    act: Callable[[Queue, str], Awaitable[Any]],
) -> int:
    """Does it to each job; the first refusal is raised when all had their turn."""

    async def run(one: Queue) -> tuple[int, list[TorilError]]:
        done, refusals = 0, []
        for job_id in jobs:
            try:
                await act(one, job_id)
                done += 1
            except TorilError as error:
                refusals.append(error)
        return done, refusals

    done, refusals = _on(target, queue, command, run)
    _raise_first(refusals)
    return int(done)


def _raise_first(refusals: list[TorilError]) -> None:
    for refusal in refusals[1:]:
        warn(str(refusal))
    if refusals:
        raise refusals[0]
