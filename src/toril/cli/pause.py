"""`toril pause`: workers take no more jobs of a queue."""

from __future__ import annotations

import typer

from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl
from toril.cli._output import print_result
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target


def add_to(app: typer.Typer) -> None:
    app.command("pause")(pause)


def pause(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """Stop all workers from taking jobs of the queue; running jobs continue."""
    run_on_queue(Target.of(redis, prefix), queue, "pause", lambda one: one.pause())
    print_result({"queue": queue, "paused": True}, f"{queue} is paused", as_json=as_json)
