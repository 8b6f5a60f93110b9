"""`toril flow` and `toril schedulers`: jobs that wait for others, and jobs that come again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from toril.cli._confirm import ask
from toril.cli._options import AsJson, BullmqArgument, JobArgument, Prefix, RedisUrl, Yes
from toril.cli._output import console, emit, harmless, moment, say, seconds, show
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound
from toril.jobs import Job
from toril.producer import FlowNode, FlowProducer
from toril.producer.flow import JobNode
from toril.producer.schedulers import Scheduler
from toril.protocol.options import JobOptions

_SHAPE = '{"name": "parent", "queue": "a", "data": {}, "children": [{"name": "child", "queue": "b"}]}'


def add_to(app: typer.Typer) -> None:
    flows = typer.Typer(help="Jobs that wait for other jobs: add, show.", no_args_is_help=True)
    flows.command("add")(add_flow)
    flows.command("show")(show_flow)
    app.add_typer(flows, name="flow")
    schedulers = typer.Typer(help="Jobs that come again: list, set, remove.", no_args_is_help=True)
    schedulers.command("list")(list_schedulers)
    schedulers.command("set")(set_scheduler)
    schedulers.command("remove")(remove_scheduler)
    app.add_typer(schedulers, name="schedulers")


# --- flows --------------------------------------------------------------------------------------------------


def add_flow(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A flow as JSON; - is standard input.", show_default=False)
    ],
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Add a job with the jobs it waits for."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    target = Target.of(redis, prefix)
    root = _node(_parsed(text))

    async def run() -> JobNode[Job[Any]]:
        async with FlowProducer(redis=target.redis, prefix=target.prefix_of("bullmq")) as producer:
            return await producer.add(root)

    added = asyncio.run(run())
    if as_json:
        emit(_as_json(added, {}))
    else:
        console().print(_tree(added, {}))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOption("flow", f"is not JSON: {error}", f"write {_SHAPE}") from None


def _node(given: Any) -> FlowNode:
    if not isinstance(given, dict) or not {"name", "queue"} <= given.keys():
        raise InvalidOption("flow", "has a job without name or queue", f"write {_SHAPE}")
    unknown = given.keys() - {"name", "queue", "data", "options", "children"}
    if unknown:
        raise InvalidOption("flow", f"has an unknown field {min(unknown)!r}", f"write {_SHAPE}")
    options = given.get("options")
    return FlowNode(
        given["name"],
        queue=given["queue"],
        data=given.get("data", {}),
        options=None if options is None else JobOptions.of(options),
        children=[_node(child) for child in given.get("children", ())],
    )


def show_flow(
    queue: BullmqArgument,
    job: JobArgument,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Generations to show.")] = 10,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Show a job with its children and their states."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)

    async def run() -> tuple[JobNode[Job[Any]], dict[tuple[str, str], str]]:
        async with FlowProducer(redis=target.redis, prefix=target.prefix_of("bullmq")) as producer:
            found = await producer.get_flow(job, where.name, depth=depth)
            if found is None:
                raise JobNotFound(job)
            states = {(one.queue_name, one.id): (await one.get_state()).value for one in found.walk()}
            return found, states

    found, states = asyncio.run(run())
    if as_json:
        emit(_as_json(found, states))
    else:
        console().print(_tree(found, states))


def _as_json(node: JobNode[Job[Any]], states: dict[tuple[str, str], str]) -> dict[str, Any]:
    job = node.job
    state = states.get((job.queue_name, job.id))
    return {
        "queue": job.queue_name,
        "id": job.id,
        "name": job.name,
        **({} if state is None else {"state": state}),
        "children": [_as_json(child, states) for child in node.children],
    }


def _tree(node: JobNode[Job[Any]], states: dict[tuple[str, str], str]) -> Tree:
    job = node.job
    state = states.get((job.queue_name, job.id), "")
    tree = Tree(Text(harmless(f"{job.queue_name}  {job.name}  {job.id}  {state}".rstrip())))
    for child in node.children:
        tree.add(_tree(child, states))
    return tree


# --- schedulers ---------------------------------------------------------------------------------------------


def list_schedulers(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """List the schedulers of a queue, the one that is due first first."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)

    async def run() -> list[Scheduler]:
        async with target.bullmq(where, "schedulers", look=True) as opened:
            return await opened.schedulers.list()

    found = asyncio.run(run())
    if as_json:
        emit([_facts(one) for one in found])
        return
    rows = [
        (one.id, one.name, one.cron or seconds(one.every), moment(one.next_run), one.runs) for one in found
    ]
    columns = ["scheduler", "job", "when", "next run", "runs"]
    show(columns, rows, right=["runs"], empty="no schedulers")


def _facts(one: Scheduler) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "cron": one.cron,
        "every": one.every,
        "tz": one.tz,
        "next_run": one.next_run,
        "limit": one.limit,
        "runs": one.runs,
        "data": one.data,
    }


def set_scheduler(
    queue: BullmqArgument,
    scheduler: Annotated[str, typer.Argument(metavar="ID", help="The scheduler's id.", show_default=False)],
    cron: Annotated[str | None, typer.Option("--cron", help='When, as a pattern: "0 3 * * *".')] = None,
    every: Annotated[float | None, typer.Option("--every", help="Seconds between runs.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="The pattern's time zone: Europe/Zurich.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many runs.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The jobs' name; left out: the id.")] = None,
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="The jobs' payload.")] = "{}",
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Make a scheduler, or change the one of that id."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    payload = _parsed(data)

    async def run() -> Job[Any]:
        async with target.bullmq(where, "schedulers") as opened:
            return await opened.schedulers.upsert(
                scheduler, cron=cron, every=every, tz=tz, limit=limit, name=name, data=payload
            )

    job = asyncio.run(run())
    if as_json:
        emit({"id": scheduler, "next_job": job.id})
    else:
        say(f"{scheduler} is set; its next job is {job.id}")


def remove_scheduler(
    queue: BullmqArgument,
    scheduler: Annotated[str, typer.Argument(metavar="ID", help="The scheduler's id.", show_default=False)],
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Remove a scheduler and its next job."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    ask(f"Remove the scheduler {scheduler} of {queue}?", yes=yes)

    async def run() -> bool:
        async with target.bullmq(where, "schedulers") as opened:
            return await opened.schedulers.remove(scheduler)

    removed = asyncio.run(run())
    if as_json:
        emit({"id": scheduler, "removed": removed})
    else:
        say(f"{scheduler} is gone" if removed else f"there was no {scheduler}")
