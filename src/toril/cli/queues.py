"""`toril queues`: the queues of a server, with the number of jobs in each state."""

from __future__ import annotations

import asyncio

import typer

from toril.cli._options import AsJson, Env, Prefix, RedisUrl
from toril.cli._output import emit, format_seconds, show, warn
from toril.cli._queue_facts import queue_facts, read_queues
from toril.cli._target import Target
from toril.observe.overview import QueueFigures

STATES = ("waiting", "prioritized", "active", "delayed", "completed", "failed")
_RIGHT_ALIGNED = (*STATES, "oldest", "workers")


def add_to(app: typer.Typer) -> None:
    app.command("queues")(queues)


def queues(redis: RedisUrl = None, prefix: Prefix = None, env: Env = "prod", as_json: AsJson = False) -> None:
    """List all queues of the server, of all kinds, with the number of jobs in each state."""
    target = Target.of(redis, prefix, env)
    overview = asyncio.run(read_queues(target))
    for queue, error in overview.errors.items():
        warn(f"{queue}: {error}")
    if as_json:
        emit([queue_facts(one) for one in overview.queues])
        return
    show(
        ["queue", *STATES, "oldest", "workers", ""],
        [_row(one) for one in overview.queues],
        right=_RIGHT_ALIGNED,
        empty="no queues yet; `toril add emails send` creates one",
    )


def _row(figures: QueueFigures) -> tuple[object, ...]:
    states = figures.states
    numbers = [states.get(state, 0) or "·" for state in STATES]
    if figures.paused:
        numbers[0] = states.get("paused", 0) or "·"
    if figures.queue.kind != "bullmq":
        numbers[4] = figures.totals.get("completed", 0) or "·"
    oldest = format_seconds(figures.oldest_waiting) if figures.ready else "·"
    return figures.label, *numbers, oldest, len(figures.workers) or "·", "paused" if figures.paused else ""
