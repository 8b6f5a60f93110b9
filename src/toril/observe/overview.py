"""All queues of a server at one glance.

Guarantee: one pipeline for all queues, whatever their number and kind; a queue that cannot be read says why and does
not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands.overview import EnvelopeOverview, QueueOverview, any_overview
from toril.commands.read import server_time
from toril.errors import RedisUnavailable, TorilError
from toril.transport import AsyncTransport
from toril.transport.discovery import FoundQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """One queue, in words that fit all kinds."""

    queue: FoundQueue
    label: str  # the queue as people and metrics name it: no two queues of a glance share it
    overview: QueueOverview | EnvelopeOverview
    now_ms: int

    @property
    def states(self) -> dict[str, int]:
        """State → number of jobs, by the names that the kind itself uses."""
        seen = self.overview
        if isinstance(seen, QueueOverview):
            return seen.counts.as_dict()
        return {
            "waiting": seen.waiting,
            "active": seen.active,
            "delayed": seen.scheduled,
            "failed": seen.dead,
        }

    @property
    def ready(self) -> int:
        """Jobs that a worker could take now, or could if the queue were not paused."""
        seen = self.overview
        if isinstance(seen, QueueOverview):
            return seen.counts.ready + seen.counts.paused
        return seen.waiting

    @property
    def dead(self) -> int:
        """Jobs that failed for good and are still there."""
        seen = self.overview
        return seen.counts.failed if isinstance(seen, QueueOverview) else seen.dead

    @property
    def paused(self) -> bool:
        return isinstance(self.overview, QueueOverview) and self.overview.paused

    @property
    def broken_schedulers(self) -> int:
        """Schedulers whose next job could not be made."""
        return self.overview.broken_schedulers if isinstance(self.overview, QueueOverview) else 0

    @property
    def oldest_waiting(self) -> float:
        """For how many seconds the job that is taken next has been ready; 0 when there is none."""
        return self._age(self.overview.ready_since_ms)

    @property
    def oldest_dead(self) -> float:
        """For how many seconds the oldest dead job has lain there; 0 when there is none."""
        seen = self.overview
        is_queue = isinstance(seen, QueueOverview)
        return self._age(seen.oldest_failed_ms if is_queue else seen.oldest_dead_ms)  # type: ignore[union-attr]

    def _age(self, since_ms: int | None) -> float:
        return 0.0 if since_ms is None else max(0, self.now_ms - since_ms) / 1000

    @property
    def workers(self) -> list[Mapping[str, Any]]:
        """What workers that run last said of themselves; one that stopped leaves a last word for a while."""
        return [one for one in self.overview.workers if one.get("state") != "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What was seen, and what could not be."""

    queues: list[QueueFigures]
    troubles: dict[str, TorilError]  # queue → why it could not be read
    now_ms: int


async def look(transport: AsyncTransport, queues: Sequence[FoundQueue]) -> Glance:
    """Reads all queues in one pipeline; raises when the server itself is away."""
    clock, *replies = await transport.run_many([server_time(), *(any_overview(one.keys) for one in queues)])
    for reply in (clock, *replies):
        if isinstance(reply, RedisUnavailable) or (reply is clock and isinstance(reply, TorilError)):
            raise reply
    now_ms = round(clock * 1000)
    seen, troubles = [], {}
    for queue, label, reply in zip(queues, _labels(queues), replies, strict=True):
        if isinstance(reply, TorilError):
            troubles[label] = reply
        else:
            seen.append(QueueFigures(queue=queue, label=label, overview=reply, now_ms=now_ms))
    return Glance(queues=seen, troubles=troubles, now_ms=now_ms)


def _labels(queues: Sequence[FoundQueue]) -> list[str]:
    """Names; of a queue that lives in both layouts, the one with a hash tag is named as Node names it."""
    plain = {str(one) for one in queues if not one.hash_tag}
    return [
        f"{{{one.name}}}" if one.kind == "bullmq" and one.hash_tag and str(one) in plain else str(one)
        for one in queues
    ]
