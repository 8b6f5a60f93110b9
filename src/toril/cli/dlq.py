"""`toril dlq`: jobs that failed for good, of queues of all kinds.

Guarantee: only selected jobs are replayed or removed: ids, a filter, or `--all` must be given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from toril.cli._confirm import confirm
from toril.cli._dead_jobs import DeadJob, Selection, open_dead_jobs
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import (
    emit,
    emit_line,
    format_time,
    print_result,
    progress_bar,
    shorten,
    show,
    show_facts,
)
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="Ids of jobs or dead letters, as in `toril dlq list`.", show_default=False
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs of this name or task type.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only jobs whose error contains this text.")
]
FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="TERMS",
        help="List and stream queues: FIELD=VALUE, also with != ~ < <= > >=, separated by commas; "
        "fields: dlq_reason, last_error, dlq_ts, task_type, job_id, attempts, user_id, payload.NAME, …",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All jobs.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of jobs, oldest first.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Jobs that failed for good: list, show, replay, purge, export.", no_args_is_help=True
    )
    group.command("list")(list_dead_jobs)
    group.command("show")(show_dead_job)
    group.command("replay")(replay)
    group.command("purge")(purge)
    group.command("export")(export)
    app.add_typer(group, name="dlq")


def list_dead_jobs(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs, newest first.")] = 20,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """List jobs that failed for good, newest first."""
    selection = Selection(name=name, reason=reason, terms=terms)
    rows = asyncio.run(_rows(Target.of(redis, prefix, env), QueueName.parse(queue), selection, limit))
    if as_json:
        emit(rows)
        return
    cells = [
        (_id(one), one.name, one.attempts, _when(one), one.reason, shorten(one.error, 90)) for one in rows
    ]
    columns = ["id", "name", "attempts", "failed at", "reason", "error"]
    show(columns, cells, right=["attempts"], empty=f"no dead jobs {'match' if selection else f'in {queue}'}")


def _id(row: DeadJob) -> str:
    return str(row.entry_id or row.job_id)


def _when(one: DeadJob) -> str:
    """Returns the time in the local time zone, or the text if it is not a time."""
    try:
        return format_time(datetime.fromisoformat(one.at or ""))
    except ValueError:
        return str(one.at)


async def _rows(target: Target, where: QueueName, selection: Selection, limit: int) -> list[DeadJob]:
    rows: list[DeadJob] = []
    async with open_dead_jobs(target, where, read_only=True) as dead_jobs:
        async for row in dead_jobs.rows(selection):
            rows.append(row)
            if len(rows) >= limit:
                break
    return rows


def show_dead_job(
    queue: QueueArgument,
    dead_job: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a job, or of a dead letter.", show_default=False)
    ],
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Show everything about a job that failed for good; if it has several dead letters, the newest."""
    target, where = Target.of(redis, prefix, env), QueueName.parse(queue)
    rows = asyncio.run(_rows(target, where, Selection(ids=(dead_job,)), 1))
    if not rows:
        raise _not_found(queue, dead_job)
    if as_json:
        emit(rows[0])
        return
    facts = {name: value for name, value in asdict(rows[0]).items() if name != "job" and value is not None}
    show_facts({**facts, "job": json.dumps(rows[0].job, ensure_ascii=False, indent=2, default=str)})


def _not_found(queue: str, *ids: str) -> JobNotFound:
    hint = f"see `toril dlq list {queue}`; it was replayed or purged, or it has not failed"
    return JobNotFound(", ".join(ids), hint=hint)


def replay(
    queue: QueueArgument,
    ids: Ids = None,
    everything: All = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Maximum number of jobs per second.")] = None,
    limit: Limit = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Put jobs that failed for good back into their queue, with all their attempts. No job is replayed twice."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    selection = Selection(ids=tuple(ids or ()), name=name, reason=reason, terms=terms)
    _check_selection(selection, everything, limit)

    async def run() -> int:
        async with open_dead_jobs(target, where) as dead_jobs:
            return await dead_jobs.replay(selection, rate=rate, limit=limit)

    with progress_bar(f"replaying jobs of {queue}"):
        moved = asyncio.run(run())
    if selection.ids and not moved:
        raise _not_found(queue, *selection.ids)
    print_result({"queue": queue, "replayed": moved}, f"{moved} jobs go back to {queue}", as_json=as_json)


def purge(
    queue: QueueArgument,
    ids: Ids = None,
    everything: All = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    limit: Limit = None,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove jobs that failed for good."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    selection = Selection(ids=tuple(ids or ()), name=name, reason=reason, terms=terms)
    _check_selection(selection, everything, limit)
    which = "All" if everything else "Matching"
    confirm(f"{which} dead jobs of {queue} will be removed. Continue?", yes=yes)

    async def run() -> int:
        async with open_dead_jobs(target, where) as dead_jobs:
            return await dead_jobs.purge(selection, limit=limit)

    with progress_bar(f"removing dead jobs of {queue}"):
        removed = asyncio.run(run())
    if selection.ids and not removed:
        raise _not_found(queue, *selection.ids)
    print_result({"queue": queue, "purged": removed}, f"{removed} jobs removed", as_json=as_json)


def export(
    queue: QueueArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write, one JSON object per line; - is standard output.",
            show_default=False,
        ),
    ],
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Write jobs that failed for good to a file, oldest first; they are not removed."""
    target, where = Target.of(redis, prefix, env), QueueName.parse(queue)
    selection = Selection(name=name, reason=reason, terms=terms)
    if str(file) == "-":
        asyncio.run(_export(target, where, selection, None))
        return
    with progress_bar(f"reading dead jobs of {queue}"):
        written = asyncio.run(_export(target, where, selection, file))
    facts = {"queue": queue, "file": str(file), "exported": written}
    print_result(facts, f"{written} jobs written to {file}", as_json=as_json)


async def _export(target: Target, where: QueueName, selection: Selection, file: Path | None) -> int:
    written = 0
    async with open_dead_jobs(target, where, read_only=True) as dead_jobs:
        with file.open("w", encoding="utf-8") if file is not None else contextlib.nullcontext() as sink:
            async for row in dead_jobs.rows(selection, newest_first=False):
                position = {"entry_id": row.entry_id} if row.entry_id else {}
                emit_line({**position, **row.job}, sink)
                written += 1
    return written


def _check_selection(selection: Selection, everything: bool, limit: int | None) -> None:
    if everything and selection:
        raise InvalidOption("--all", "is given together with other criteria", "give one or the other")
    if not everything and not selection and limit is None:
        raise InvalidOption("jobs", "say which", "give ids, --name, --reason, --filter or --limit, or --all")
