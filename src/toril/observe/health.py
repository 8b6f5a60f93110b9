"""The web server of a worker process: liveness, readiness and metrics.

    /healthz   200 while the services of all its workers run (503: restart it); a lost connection to Redis is no reason
    /readyz    200 while they are connected, sweep for stalled jobs on time, renew their locks and take jobs
    /metrics   the worker's metrics and its queue's lengths, if it has a Prometheus collector

Guarantee: it runs in the worker's event loop, so probes time out while a handler blocks the loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol

from toril.http import HttpServer, Response, Route
from toril.observe.overview import read_overview
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.telemetry.hooks import MetricsCollector
from toril.transport import Address, AsyncTransport, ConnectionPolicy
from toril.transport.discovery import FoundQueue
from toril.worker import WorkerHealth

JSON = "application/json"
# While Redis does not answer, the worker's own metrics must be served within Prometheus' time-out.
SHORT_TIMEOUTS = ConnectionPolicy(connect_timeout=1.0, command_timeout=1.0, call_attempts=1)
# The states of `bullmq_queue_length`, and the states of queues that each of them counts.
LENGTHS = {"wait": ("waiting", "prioritized", "paused"), "active": ("active",), "delayed": ("delayed",)}
LENGTHS |= {"completed": ("completed",), "failed": ("failed",)}


class ReportsHealth(Protocol):
    """A worker of any kind."""

    id: str
    queue: str

    def health(self) -> WorkerHealth: ...


def worker_exposition(
    *workers: ReportsHealth,
    metrics: Route | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> HttpServer:
    """Returns the web server of the workers of one process, not yet started."""
    routes: dict[str, Route] = {"/healthz": _health(workers, "alive"), "/readyz": _health(workers, "ready")}
    if metrics is not None:
        routes["/metrics"] = metrics
    return HttpServer(routes, host=host, port=port)


def _health(workers: Sequence[ReportsHealth], check: str) -> Route:
    async def route() -> Response:
        facts = [_facts_of(worker) for worker in workers]
        status = HTTPStatus.OK if all(one[check] for one in facts) else HTTPStatus.SERVICE_UNAVAILABLE
        body = facts[0] if len(facts) == 1 else {check: status is HTTPStatus.OK, "workers": facts}
        return Response(json.dumps(body).encode() + b"\n", status, JSON)

    return route


def _facts_of(worker: ReportsHealth) -> dict[str, object]:
    health = worker.health()
    facts = {"worker_id": worker.id, "queue": worker.queue, "alive": health.alive, "ready": health.ready}
    return {**facts, **asdict(health)}


class QueueLengths:
    """Sets the lengths of a queue in a collector, by one call, before the metrics are read."""

    def __init__(
        self, keys: QueueKeys | ListKeys | StreamKeys, address: Address, collector: MetricsCollector
    ) -> None:
        self._transport = AsyncTransport(address, policy=SHORT_TIMEOUTS)
        self._queue = _found(keys)
        self._collector = collector

    async def refresh(self) -> None:
        overview = await read_overview(self._transport, [self._queue])
        for figures in overview.queues:
            for state, length in lengths_of(figures.states).items():
                self._collector.set_queue_length(str(self._queue), state, length)

    async def close(self) -> None:
        await self._transport.close()


def lengths_of(states: dict[str, int]) -> dict[str, int]:
    """Returns the number of jobs by the states of the metric; all waiting jobs are one number."""
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
