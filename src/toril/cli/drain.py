"""`toril drain`: removes the jobs that wait."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from toril.cli._confirm import confirm
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl, Yes
from toril.cli._output import print_result, progress_bar, queue_warnings
from toril.cli._target import QueueName, Target


def add_to(app: typer.Typer) -> None:
    app.command("drain")(drain)


def drain(
    queue: QueueArgument,
    delayed: Annotated[bool, typer.Option("--delayed", help="Remove delayed jobs as well.")] = False,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Remove all waiting jobs; running and ended jobs and the next runs of schedulers stay."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix, env)
    confirm(f"Remove all waiting{' and delayed' if delayed else ''} jobs of {queue}?", yes=yes)
    with progress_bar(f"draining {queue}"), queue_warnings():
        removed = asyncio.run(_drain(target, where, delayed=delayed))
    print_result({"queue": queue, "removed": removed}, f"{removed} jobs removed", as_json=as_json)


async def _drain(target: Target, where: QueueName, *, delayed: bool) -> int:
    async with target.open(where) as queue:
        return await queue.drain(delayed=delayed)
