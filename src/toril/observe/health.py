"""The web server of a worker process: is it alive, is it ready, and its metrics.

    /healthz   200 while the services of all its workers run (503: start it again); Redis being away is no reason
    /readyz    200 while they are connected, look for stalled jobs on time, keep their locks and take jobs
    /metrics   the worker's metrics and its queue's lengths, if it has a Prometheus collector

Guarantee: it answers in the worker's own event loop, so a handler that blocks the loop makes probes time out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Protocol

from toril.observe.http import Answer, Exposition, Route
from toril.observe.overview import look
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.telemetry.hooks import MetricsCollector
from toril.transport import Address, AsyncTransport, ConnectionPolicy
from toril.transport.discovery import FoundQueue
from toril.worker import WorkerHealth

JSON = "application/json"
# While Redis is silent the worker's own metrics matter most: they must not wait longer than Prometheus does.
BRIEF = ConnectionPolicy(connect_timeout=1.0, command_timeout=1.0, call_attempts=1)
# The states of `bullmq_queue_length` as the document names them, and where they come from.
LENGTHS = {"wait": ("waiting", "prioritized", "paused"), "active": ("active",), "delayed": ("delayed",)}
LENGTHS |= {"completed": ("completed",), "failed": ("failed",)}


class Healthy(Protocol):
    """Whatever can say how it is: a worker of any kind."""

    id: str
    queue: str

    def health(self) -> WorkerHealth: ...


def worker_exposition(
    *workers: Healthy,
    metrics: Route | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Exposition:
    """The web server of one worker, or of the workers of one process, not yet started."""
    routes: dict[str, Route] = {"/healthz": _health(workers, "alive"), "/readyz": _health(workers, "ready")}
    if metrics is not None:
        routes["/metrics"] = metrics
    return Exposition(routes, host=host, port=port)


def _health(workers: Sequence[Healthy], question: str) -> Route:
    async def route() -> Answer:
        facts = [_facts_of(worker) for worker in workers]
        status = HTTPStatus.OK if all(one[question] for one in facts) else HTTPStatus.SERVICE_UNAVAILABLE
        body = facts[0] if len(facts) == 1 else {question: status is HTTPStatus.OK, "workers": facts}
        return Answer(json.dumps(body).encode() + b"\n", status, JSON)

    return route


def _facts_of(worker: Healthy) -> dict[str, Any]:
    health = worker.health()
    facts = {"worker_id": worker.id, "queue": worker.queue, "alive": health.alive, "ready": health.ready}
    return {**facts, **asdict(health)}


class QueueLengths:
    """Tells a collector how long a queue is, in one call, just before somebody reads the metrics."""

    def __init__(
        self, keys: QueueKeys | ListKeys | StreamKeys, address: Address, collector: MetricsCollector
    ) -> None:
        self._transport = AsyncTransport(address, policy=BRIEF)
        self._queue = _found(keys)
        self._collector = collector

    async def refresh(self) -> None:
        glance = await look(self._transport, [self._queue])
        for figures in glance.queues:
            for state, length in lengths_of(figures.states).items():
                self._collector.set_queue_length(str(self._queue), state, length)

    async def close(self) -> None:
        await self._transport.close()


def lengths_of(states: dict[str, int]) -> dict[str, int]:
    """Jobs by the document's states: what waits is one number, whatever it waits for its turn in."""
    return {
        name: sum(states.get(part, 0) for part in parts)
        for name, parts in LENGTHS.items()
        if any(part in states for part in parts)
    }


def _found(keys: QueueKeys | ListKeys | StreamKeys) -> FoundQueue:
    if isinstance(keys, QueueKeys):
        return FoundQueue("bullmq", keys.name, keys.prefix, hash_tag=bool(keys.hash_tag))
    kind = "list" if isinstance(keys, ListKeys) else "stream"
    return FoundQueue(kind, keys.purpose, keys.prefix, keys.env, keys.hash_tag)  # type: ignore[arg-type]
