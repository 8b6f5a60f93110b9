"""The figures of all queues of a server.

Guarantee: one pipeline for all queues, whatever their number and kind. For a queue that cannot be read the error is
returned, and the others are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands.command import Command
from toril.commands.overview import MOST_WORKERS, EnvelopeOverview, QueueOverview, any_overview
from toril.commands.server import server_time
from toril.errors import MalformedValue, RedisUnavailable, TorilError
from toril.protocol.keys import MAX_NAME_LENGTH
from toril.protocol.printable import one_line
from toril.transport import AsyncTransport
from toril.transport.discovery import FoundQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """The figures of one queue, by the same names for all kinds."""

    queue: FoundQueue
    label: str  # the queue's name in output and metrics, unique within an overview
    overview: QueueOverview | EnvelopeOverview
    now_ms: int

    @property
    def states(self) -> dict[str, int]:
        """State → number of jobs; the states are those of the kind."""
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
        """The number of jobs that a worker could take now, or could if the queue were not paused."""
        seen = self.overview
        if isinstance(seen, QueueOverview):
            return seen.counts.ready + seen.counts.paused
        return seen.waiting

    @property
    def dead(self) -> int:
        """The number of jobs that failed for good and are still stored."""
        seen = self.overview
        return seen.counts.failed if isinstance(seen, QueueOverview) else seen.dead

    @property
    def totals(self) -> Mapping[str, int]:
        """Counters of a list or stream queue since it was created; BullMQ queues have none."""
        return self.overview.totals if isinstance(self.overview, EnvelopeOverview) else {}

    @property
    def paused(self) -> bool:
        return isinstance(self.overview, QueueOverview) and self.overview.paused

    @property
    def broken_schedulers(self) -> int:
        """The number of schedulers whose next job could not be added."""
        return self.overview.broken_schedulers if isinstance(self.overview, QueueOverview) else 0

    @property
    def oldest_waiting(self) -> float:
        """The seconds since the job that is taken next became ready; 0 without one."""
        return self._age(self.overview.ready_since_ms)

    @property
    def oldest_dead(self) -> float:
        """The seconds since the oldest job that failed for good failed; 0 without one."""
        seen = self.overview
        is_queue = isinstance(seen, QueueOverview)
        return self._age(seen.oldest_failed_ms if is_queue else seen.oldest_dead_ms)  # type: ignore[union-attr]

    def _age(self, since_ms: int | None) -> float:
        return 0.0 if since_ms is None else max(0, self.now_ms - since_ms) / 1000

    @property
    def workers(self) -> list[Mapping[str, Any]]:
        """The last reports of running workers; a stopped worker's last report is stored for a while."""
        return [one for one in self.overview.workers if one.get("state") != "stopped"]

    @property
    def worker_count(self) -> int:
        """The number of running workers, also if not all their reports were read."""
        return self.overview.worker_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOverview:
    """The figures of queues, and the errors of those that could not be read."""

    queues: list[QueueFigures]
    errors: dict[str, TorilError]  # queue → why it could not be read
    now_ms: int


async def read_overview(transport: AsyncTransport, queues: Sequence[FoundQueue]) -> ServerOverview:
    """Reads all queues in one pipeline; raises if the server does not answer."""
    return decode_overview(queues, await transport.run_many(overview_commands(queues)))


def overview_commands(queues: Sequence[FoundQueue], *, max_reports: int = MOST_WORKERS) -> list[Command[Any]]:
    """Returns the commands that read these queues, with so many reports of workers of each at most."""
    readable = (one for one in queues if not one.undecodable)
    return [server_time(), *(any_overview(one.keys, max_reports=max_reports) for one in readable)]


def decode_overview(queues: Sequence[FoundQueue], values: Sequence[Any]) -> ServerOverview:
    """Returns the figures from the values of `overview_commands`; raises if the server did not answer."""
    clock, *replies = values
    for reply in (clock, *replies):
        if isinstance(reply, RedisUnavailable) or (reply is clock and isinstance(reply, TorilError)):
            raise reply
    now_ms = round(clock * 1000)
    seen, errors = [], {}
    found = dict(zip((one for one in queues if not one.undecodable), replies, strict=True))
    for queue, label in zip(queues, _labels(queues), strict=True):
        reply = found.get(queue, MalformedValue("key", "is no UTF-8 text"))
        if isinstance(reply, TorilError):
            errors[label] = reply
        else:
            seen.append(QueueFigures(queue=queue, label=label, overview=reply, now_ms=now_ms))
    return ServerOverview(queues=seen, errors=errors, now_ms=now_ms)


def _labels(queues: Sequence[FoundQueue]) -> list[str]:
    """Returns names; of a queue that exists in both layouts, the one with a hash tag is named as in Node."""
    plain = {str(one) for one in queues if not one.hash_tag}
    return unique_labels(
        f"{{{one.name}}}" if one.kind == "bullmq" and one.hash_tag and str(one) in plain else str(one)
        for one in queues
    )


def unique_labels(texts: Iterable[str]) -> list[str]:
    """Returns each text as one printable line of limited length; different texts get different labels."""
    labels: list[str] = []
    taken: set[str] = set()
    for text in texts:
        label = one_line(text[:MAX_NAME_LENGTH])
        if len(text) > MAX_NAME_LENGTH or label in taken:
            digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
            label = f"{label}…{digest}"
        labels.append(label)
        taken.add(label)
    return labels
