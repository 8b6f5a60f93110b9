"""`toril resume`: workers take jobs of a paused queue again."""

from __future__ import annotations

import typer

from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl
from toril.cli._output import print_result
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target


def add_to(app: typer.Typer) -> None:
    app.command("resume")(resume)


def resume(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """Let workers take jobs of a paused queue again."""
    run_on_queue(Target.of(redis, prefix), queue, "resume", lambda one: one.resume())
    print_result({"queue": queue, "paused": False}, f"{queue} is running", as_json=as_json)
