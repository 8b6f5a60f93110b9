"""`toril flow`: jobs that wait for other jobs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from toril.cli._json_input import parse_json
from toril.cli._options import AsJson, BullmqArgument, JobArgument, Prefix, RedisUrl
from toril.cli._output import console, emit
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, JobNotFound
from toril.jobs import Job
from toril.producer import FlowNode, FlowProducer
from toril.producer.flow import JobNode
from toril.protocol.options import JobOptions
from toril.protocol.printable import one_line

_SHAPE = '{"name": "parent", "queue": "a", "data": {}, "children": [{"name": "child", "queue": "b"}]}'


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Jobs that wait for other jobs: add, show.", no_args_is_help=True)
    group.command("add")(add_flow)
    group.command("show")(show_flow)
    app.add_typer(group, name="flow")


def add_flow(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File with a flow as JSON; - is standard input.", show_default=False
        ),
    ],
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Add a job together with the jobs that it waits for."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    target = Target.of(redis, prefix)
    root = _node(parse_json(text, "flow", f"write {_SHAPE}"))

    async def run() -> JobNode[Job]:
        async with FlowProducer(redis=target.redis, prefix=target.prefix_of("bullmq")) as producer:
            return await producer.add(root)

    added = asyncio.run(run())
    if as_json:
        emit(_as_json(added, {}))
    else:
        console().print(_tree(added, {}))


def _node(given: object) -> FlowNode:
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
    depth: Annotated[int, typer.Option("--depth", min=1, help="Number of levels to show.")] = 10,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Show a job with its children and their states."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)

    async def run() -> tuple[JobNode[Job], dict[tuple[str, str], str]]:
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


def _as_json(node: JobNode[Job], states: dict[tuple[str, str], str]) -> dict[str, object]:
    job = node.job
    state = states.get((job.queue_name, job.id))
    return {
        "queue": job.queue_name,
        "id": job.id,
        "name": job.name,
        **({} if state is None else {"state": state}),
        "children": [_as_json(child, states) for child in node.children],
    }


def _tree(node: JobNode[Job], states: dict[tuple[str, str], str]) -> Tree:
    job = node.job
    state = states.get((job.queue_name, job.id), "")
    tree = Tree(Text(one_line(f"{job.queue_name}  {job.name}  {job.id}  {state}".rstrip())))
    for child in node.children:
        tree.add(_tree(child, states))
    return tree
