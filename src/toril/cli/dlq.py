"""`toril dlq`: jobs that failed for good, whatever the kind of their queue.

Guarantee: nothing is replayed or removed that was not chosen: an id, a filter, or `--all` must be given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from toril.cli._confirm import ask
from toril.cli._dead_jobs import Choice, opened
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import emit, emit_line, in_progress, moment, print_result, shortened, show, show_facts
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Jobs, or letters, by id: see `toril dlq list`.", show_default=False),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Only jobs of this name or task type.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only those whose error contains this.")]
FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="TERMS",
        help="List and stream queues: FIELD=VALUE, also with != ~ < <= > >=, separated by commas; "
        "fields: dlq_reason, last_error, dlq_ts, task_type, job_id, attempts, user_id, payload.NAME, …",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Jobs that failed for good: list, show, replay, purge, export.", no_args_is_help=True
    )
    group.command("list")(list_letters)
    group.command("show")(show_letter)
    group.command("replay")(replay)
    group.command("purge")(purge)
    group.command("export")(export)
    app.add_typer(group, name="dlq")


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
    choice = Choice(name=name, reason=reason, terms=terms)
    rows = asyncio.run(_rows(Target.of(redis, prefix, env), QueueName.parse(queue), choice, limit))
    if as_json:
        emit(rows)
        return
    cells = [
        (_id(one), one["name"], one["attempts"], _when(one), one["reason"], shortened(one["error"], 90))
        for one in rows
    ]
    columns = ["id", "name", "attempts", "failed at", "reason", "error"]
    show(columns, cells, right=["attempts"], empty=f"no dead jobs {'match' if choice else f'in {queue}'}")


def _id(row: dict[str, Any]) -> str:
    return str(row["entry_id"] or row["job_id"])


def _when(one: dict[str, Any]) -> str:
    """The time in the reader's zone; somebody else's letter may say anything."""
    try:
        return moment(datetime.fromisoformat(one["at"]))
    except (TypeError, ValueError):
        return str(one["at"])


async def _rows(target: Target, where: QueueName, choice: Choice, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with opened(target, where, look=True) as graves:
        async for row in graves.rows(choice):
            rows.append(row)
            if len(rows) >= limit:
                break
    return rows


def show_letter(
    queue: QueueArgument,
    letter: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a job, or of a letter.", show_default=False)
    ],
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Show everything about a job that failed for good; the newest letter, if a job has several."""
    target, where = Target.of(redis, prefix, env), QueueName.parse(queue)
    rows = asyncio.run(_rows(target, where, Choice(ids=(letter,)), 1))
    if not rows:
        raise _not_there(queue, letter)
    if as_json:
        emit(rows[0])
        return
    facts = {name: value for name, value in rows[0].items() if name != "job" and value is not None}
    show_facts({**facts, "job": json.dumps(rows[0]["job"], ensure_ascii=False, indent=2, default=str)})


def _not_there(queue: str, *ids: str) -> JobNotFound:
    hint = f"see `toril dlq list {queue}`; it was replayed, purged, or never died"
    return JobNotFound(", ".join(ids), hint=hint)


def replay(
    queue: QueueArgument,
    ids: Ids = None,
    everything: All = False,
    name: NameOption = None,
    reason: ReasonOption = None,
    terms: FilterOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="At most so many in a second.")] = None,
    limit: Limit = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Give dead jobs another life, with all their attempts. Repeating it replays nothing twice."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    choice = Choice(ids=tuple(ids or ()), name=name, reason=reason, terms=terms)
    _check_chosen(choice, everything, limit)

    async def run() -> int:
        async with opened(target, where) as graves:
            return await graves.replay(choice, rate=rate, limit=limit)

    with in_progress(f"replaying jobs of {queue}"):
        moved = asyncio.run(run())
    if choice.ids and not moved:
        raise _not_there(queue, *choice.ids)
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
    """Remove dead jobs for good."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    choice = Choice(ids=tuple(ids or ()), name=name, reason=reason, terms=terms)
    _check_chosen(choice, everything, limit)
    which = "All" if everything else "Matching"
    ask(f"{which} dead jobs of {queue} will be gone for good. Go on?", yes=yes)

    async def run() -> int:
        async with opened(target, where) as graves:
            return await graves.purge(choice, limit=limit)

    with in_progress(f"removing dead jobs of {queue}"):
        removed = asyncio.run(run())
    if choice.ids and not removed:
        raise _not_there(queue, *choice.ids)
    print_result({"queue": queue, "purged": removed}, f"{removed} jobs removed", as_json=as_json)


def export(
    queue: QueueArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Gets one JSON object in a line; - is standard output.",
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
    """Write dead jobs to a file, oldest first; they stay where they are."""
    target, where = Target.of(redis, prefix, env), QueueName.parse(queue)
    choice = Choice(name=name, reason=reason, terms=terms)
    if str(file) == "-":
        asyncio.run(_export(target, where, choice, None))
        return
    with in_progress(f"reading dead jobs of {queue}"):
        written = asyncio.run(_export(target, where, choice, file))
    facts = {"queue": queue, "file": str(file), "exported": written}
    print_result(facts, f"{written} jobs written to {file}", as_json=as_json)


async def _export(target: Target, where: QueueName, choice: Choice, file: Path | None) -> int:
    written = 0
    async with opened(target, where, look=True) as graves:
        with file.open("w", encoding="utf-8") if file is not None else contextlib.nullcontext() as sink:
            async for row in graves.rows(choice, newest_first=False):
                where_it_lies = {"entry_id": row["entry_id"]} if row["entry_id"] else {}
                emit_line({**where_it_lies, **row["job"]}, sink)
                written += 1
    return written


def _check_chosen(choice: Choice, everything: bool, limit: int | None) -> None:
    if everything and choice:
        raise InvalidOption("--all", "is given together with a choice", "give one or the other")
    if not everything and not choice and limit is None:
        raise InvalidOption("jobs", "say which", "give ids, --name, --reason, --filter or --limit, or --all")
