"""What the shell offers after the tabulator: names of queues and ids of jobs.

Guarantee: a completion never starts a server, never waits for long and never prints an error.
"""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from toril.contract.errors import TorilError

# Longer than a server needs, shorter than a person waits.
PATIENCE = 1.5
MOST_JOBS = 50


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues whose name begins like this."""
    return [name for name in _quietly(ctx, _queues) if name.startswith(incomplete)]


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest jobs of the queue that was named."""
    return [job_id for job_id in _quietly(ctx, _jobs) if job_id.startswith(incomplete)]


def _quietly(ctx: typer.Context, look: Any) -> list[str]:
    try:
        return asyncio.run(asyncio.wait_for(look(dict(ctx.params)), PATIENCE))
    except (TorilError, OSError, TimeoutError):
        return []


def _target(given: dict[str, Any]) -> Any:
    from toril.cli._target import EMBEDDED, Target
    from toril.server import status

    target = Target.of(given.get("redis"), given.get("prefix"), given.get("env") or "prod")
    if target.redis.startswith(EMBEDDED) and not status(target.redis).running:
        raise OSError("no server runs, and a completion starts none")
    return target


async def _queues(given: dict[str, Any]) -> list[str]:
    from toril.observe.directory import find_queues
    from toril.store import AsyncStore

    target = _target(given)
    async with AsyncStore(target.redis) as store:
        found = await find_queues(store, prefix=target.prefix, env=target.env)
    return [str(one) for one in found]


async def _jobs(given: dict[str, Any]) -> list[str]:
    from toril.cli._target import QueueName

    target = _target(given)
    async with target.bullmq(QueueName.parse(given["queue"]), "inspect", look=True) as queue:
        return [job.id for job in await queue.get_jobs(None, 0, MOST_JOBS)]
