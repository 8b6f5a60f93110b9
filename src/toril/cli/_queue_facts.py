"""What `toril queues`, `inspect` and `top` print about a queue."""

from __future__ import annotations

from toril.cli._target import Target
from toril.observe.overview import QueueFigures, ServerOverview, read_overview
from toril.transport import AsyncTransport
from toril.transport.discovery import FoundQueue, find_queues


async def read_queues(target: Target, only: FoundQueue | None = None) -> ServerOverview:
    """Reads one queue, or all queues of the server."""
    async with AsyncTransport(target.redis) as transport:
        found = [only] if only else await find_queues(transport, prefix=target.prefix, env=target.env)
        return await read_overview(transport, found)


def queue_facts(figures: QueueFigures) -> dict[str, object]:
    """Returns the figures of a queue for JSON output."""
    return {
        "queue": figures.label,
        "kind": figures.queue.kind,
        "prefix": figures.queue.prefix,
        "states": figures.states,
        "paused": figures.paused,
        "oldest_waiting_seconds": round(figures.oldest_waiting, 3),
        "oldest_dead_seconds": round(figures.oldest_dead, 3),
        "totals": dict(figures.totals),
        "workers": [dict(one) for one in figures.workers],
    }
