"""`toril dlq`: jobs that failed for good, whatever the kind of their queue.

On a BullMQ queue these are the jobs of the failed set; on list and stream queues the dead letters.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from toril.cli._ask import ask
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import emit, in_progress, moment, say, shortened, show
from toril.cli._target import QueueName, Target
from toril.contract.envelope import DeadLetter
from toril.contract.errors import InvalidOption
from toril.jobs import Job
from toril.queues.dead_letters import LetterFilter, parse_filter

NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs of this name or task type.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only those whose error contains this.")]
FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="TERMS",
        help="List and stream queues: FIELD=VALUE, FIELD!=VALUE or FIELD~PART, separated by commas.",
    ),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Jobs that failed for good: list, replay, purge, export.", no_args_is_help=True)
    group.command("list")(list_letters)
    group.command("replay")(replay)
    group.command("purge")(purge)
    group.command("export")(export)
    app.add_typer(group, name="dlq")


def _wanted(name: str | None, reason: str | None, terms: str | None) -> LetterFilter:
    chosen = parse_filter(terms) if terms else None

    def matches(letter: DeadLetter) -> bool:
        return (
            (name is None or letter.task_type == name)
            and (reason is None or reason in (letter.last_error or ""))
            and (chosen is None or chosen(letter))
        )

    return matches


def _job_wanted(name: str | None, reason: str | None, terms: str | None) -> Callable[[Job], bool]:
    if terms:
        raise InvalidOption("filter", "is for list and stream queues", "use --name and --reason")
    return lambda job: (
        (name is None or job.name == name) and (reason is None or reason in (job.failed_reason or ""))
    )


def list_letters(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 20,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """List jobs that failed for good, newest first."""
    rows = asyncio.run(
        _read(Target.of(redis, prefix, env), QueueName.parse(queue), name, reason, terms, limit=limit)
    )
    if as_json:
        emit(rows)
        return
    cells = [(_id(one), _name(one), one["attempts"], one["at"], shortened(one["error"], 90)) for one in rows]
    columns = ["job", "name", "attempts", "failed at", "error"]
    show(columns, cells, right=["attempts"], empty="no dead letters")


def _id(row: dict[str, Any]) -> str:
    return str(row["entry_id"] or row["job_id"])


def _name(row: dict[str, Any]) -> str:
    return str(row["name"])


async def _read(
    target: Target,
    where: QueueName,
    name: str | None,
    reason: str | None,
    terms: str | None,
    *,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    if where.kind == "bullmq":
        wanted = _job_wanted(name, reason, terms)
        async with target.bullmq(where, "dlq", look=True) as queue:
            jobs = [job for job in await queue.get_dead_letters() if wanted(job)]
        return [_job_row(job) for job in jobs[:limit]]
    async with target.envelopes(where) as letters:
        found = [one async for one in letters.dead_letters(_wanted(name, reason, terms))]
    return [_letter_row(one) for one in reversed(found[-limit:] if limit else found)]


def _job_row(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "entry_id": None,
        "name": job.name,
        "attempts": job.attempts_made,
        "at": moment(job.finished_on),
        "error": job.failed_reason or "",
        "job": job.record.as_dict(),
    }


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "job_id": letter.job_id,
        "entry_id": letter.entry_id,
        "name": letter.task_type,
        "attempts": letter.envelope.attempts,
        "at": letter.dlq_ts,
        "error": letter.last_error or letter.dlq_reason,
        "reason": letter.dlq_reason,
        "job": letter.as_dict(),
    }


def replay(
    queue: QueueArgument,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="At most so many in a second.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")
    ] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Give dead jobs another life, with all their attempts."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    _choose(everything, name, reason, terms, limit)

    async def run() -> int:
        if where.kind == "bullmq":
            wanted = _job_wanted(name, reason, terms)
            async with target.bullmq(where, "dlq") as opened:
                return await opened.retry_jobs(count=limit, where=wanted, rate=rate)
        async with target.envelopes(where) as letters:
            return await letters.replay(_wanted(name, reason, terms), rate=rate, limit=limit)

    with in_progress(f"replaying jobs of {queue}"):
        moved = asyncio.run(run())
    _done({"queue": queue, "replayed": moved}, f"{moved} jobs go back to {queue}", as_json=as_json)


def purge(
    queue: QueueArgument,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")
    ] = None,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove dead jobs for good."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    _choose(everything, name, reason, terms, limit)
    ask(f"Remove dead jobs of {queue} for good?", yes=yes)

    async def run() -> int:
        if where.kind != "bullmq":
            async with target.envelopes(where) as letters:
                return await letters.purge(_wanted(name, reason, terms), limit=limit)
        wanted = _job_wanted(name, reason, terms)
        async with target.bullmq(where, "dlq") as opened:
            # Oldest first, as everywhere; the failed set is listed newest first.
            doomed = [job for job in reversed(await opened.get_dead_letters()) if wanted(job)][:limit]
            for job in doomed:
                await opened.remove(job.id)
            return len(doomed)

    with in_progress(f"removing dead jobs of {queue}"):
        removed = asyncio.run(run())
    _done({"queue": queue, "purged": removed}, f"{removed} jobs removed", as_json=as_json)


def export(
    queue: QueueArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Gets one JSON object in a line.", show_default=False)
    ],
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Write dead jobs to a file; they stay where they are."""
    target = Target.of(redis, prefix, env)
    with in_progress(f"reading dead jobs of {queue}"):
        rows = asyncio.run(_read(target, QueueName.parse(queue), name, reason, terms))
    lines = [json.dumps(one["job"], ensure_ascii=False) + "\n" for one in reversed(rows)]
    file.write_text("".join(lines), encoding="utf-8")
    facts = {"queue": queue, "file": str(file), "exported": len(lines)}
    _done(facts, f"{len(lines)} jobs written to {file}", as_json=as_json)


def _choose(everything: bool, *choices: object) -> None:
    if everything == any(choice is not None for choice in choices):
        raise InvalidOption("jobs", "say which", "give --name, --reason, --filter or --limit, or --all")


def _done(facts: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        emit(facts)
    else:
        say(line)
