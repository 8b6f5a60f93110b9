"""Prometheus metrics of all queues of a server, without a worker.

Guarantee: a scrape is one pipelined read, whatever the number of queues and jobs; names come from the caller or from a
search that runs at the start and then at its own pace, beside the scrapes. A server that is away is a metric
(`bullmq_exporter_up 0`), not an error. No two time series share their labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self

from toril.commands.overview import EnvelopeOverview
from toril.errors import TorilError
from toril.observe.discovery import QueueDiscovery
from toril.observe.health import lengths_of
from toril.observe.http import Answer, Exposition
from toril.observe.overview import Glance, QueueFigures, look
from toril.protocol.extras import needed
from toril.telemetry.prometheus import CONTENT_TYPE
from toril.transport import AsyncTransport, ConnectionPolicy

with needed("prometheus"):
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

DEFAULT_PORT: Final = 9538
# A scrape must answer while Prometheus still listens, also when the server does not.
POLICY: Final = ConnectionPolicy(connect_timeout=2.0, command_timeout=4.0, call_attempts=1)


class Exporter:
    """Reads the queues of a server and says it in Prometheus' words."""

    def __init__(
        self,
        redis: Any = None,
        *,
        queues: Iterable[str] = (),
        prefix: str | None = None,
        env: str = "prod",
        search_every: float = 60.0,
    ) -> None:
        """`queues` are written as in the shell (`emails`, `list:NAME`, `stream:NAME`); none: all that are found."""
        self._transport = AsyncTransport(redis, policy=POLICY)
        self._directory = QueueDiscovery(
            self._transport, queues, prefix=prefix, env=env, search_every=search_every
        )
        self._scraping = asyncio.Lock()

    async def prepare(self) -> None:
        """Searches for queues, so that no scrape has to; a server that is away is asked with the first scrape."""
        with contextlib.suppress(TorilError):
            await self._directory.queues()

    async def scrape(self) -> bytes:
        """What `/metrics` shows."""
        return written(await self.families())

    async def families(self) -> list[Metric]:
        """The same as values."""
        async with self._scraping:
            began = time.monotonic()
            glance, trouble = await self._look()
            seconds = time.monotonic() - began
        return list(_families(glance, trouble, seconds))

    async def _look(self) -> tuple[Glance, TorilError | None]:
        try:
            return await look(self._transport, await self._directory.queues()), None
        except TorilError as error:
            return Glance(queues=[], troubles={}, now_ms=0), error

    def exposition(self, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> Exposition:
        """A web server with `/metrics`, not yet started."""

        async def metrics() -> Answer:
            return Answer(await self.scrape(), content_type=CONTENT_TYPE)

        async def alive() -> Answer:
            return Answer(b"ok\n")

        return Exposition({"/metrics": metrics, "/healthz": alive}, host=host, port=port)

    async def close(self) -> None:
        await self._directory.close()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def written(families: list[Metric]) -> bytes:
    """Metrics in Prometheus' words."""
    return generate_latest(_Collected(families))


class _Collected:
    """What `generate_latest` needs of a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _families(glance: Glance, trouble: TorilError | None, seconds: float) -> Iterator[Metric]:
    up = GaugeMetricFamily("bullmq_exporter_up", "1: the server answered.", value=0 if trouble else 1)
    took = GaugeMetricFamily("bullmq_exporter_scrape_seconds", "How long the read took.", value=seconds)
    unread = GaugeMetricFamily(
        "bullmq_exporter_unreadable_queues", "Queues that could not be read.", value=len(glance.troubles)
    )
    status = GaugeMetricFamily(
        "bullmq_redis_connection_status", "1 for the status that holds.", labels=["status"]
    )
    status.add_metric(["connected"], 0 if trouble else 1)
    status.add_metric(["disconnected"], 1 if trouble else 0)
    yield from (up, took, unread, status)
    if trouble is None:
        yield from _queue_families(glance.queues)
        yield from _stream_families(glance.queues)


def _gauge(name: str, text: str, values: Iterable[tuple[list[str], float]], labels: list[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for words, value in values:
        family.add_metric(words, value)
    return family


def _queue_families(queues: list[QueueFigures]) -> Iterator[Metric]:
    yield _gauge(
        "bullmq_job_count",
        "Jobs in one state, by the names of the queue's own kind.",
        (([one.label, state], count) for one in queues for state, count in one.states.items()),
        ["queue", "state"],
    )
    yield _gauge(
        "bullmq_queue_length",
        "Jobs in one state; wait counts prioritized and paused jobs as well.",
        (([one.label, state], count) for one in queues for state, count in lengths_of(one.states).items()),
        ["queue", "state"],
    )
    figures: dict[str, tuple[str, Callable[[QueueFigures], float]]] = {
        "bullmq_queue_paused": ("1: workers leave the queue alone.", lambda one: float(one.paused)),
        "bullmq_oldest_waiting_seconds": (
            "For how long the job that is taken next has been ready.",
            lambda one: one.oldest_waiting,
        ),
        "bullmq_dlq_depth": ("Jobs that failed for good and are still there.", lambda one: one.dead),
        "bullmq_dlq_oldest_seconds": ("Age of the oldest of them.", lambda one: one.oldest_dead),
        "bullmq_broken_schedulers": (
            "Schedulers whose next job could not be made.",
            lambda one: one.broken_schedulers,
        ),
        "bullmq_queue_workers": ("Workers that reported lately.", lambda one: len(one.workers)),
    }
    for name, (text, figure) in figures.items():
        yield _gauge(name, text, (([one.label], figure(one)) for one in queues), ["queue"])
    yield _gauge(
        "bullmq_active_workers",
        "1 for each worker that reported lately.",
        (([one.label, worker], 1) for one in queues for worker in _ids(one)),
        ["queue", "worker_id"],
    )


def _ids(figures: QueueFigures) -> list[str]:
    """Workers by name, each once, whatever somebody else wrote under our keys."""
    return list(dict.fromkeys(str(report.get("worker", "?")) for report in figures.workers))


def _stream_families(queues: list[QueueFigures]) -> Iterator[Metric]:
    seen = [(one.label, one.queue.kind, one.overview) for one in queues]
    streams = [
        (name, view) for name, kind, view in seen if kind == "stream" and isinstance(view, EnvelopeOverview)
    ]
    yield _gauge(
        "bullmq_stream_lag",
        "Entries that no consumer has got yet.",
        (([name], view.waiting) for name, view in streams),
        ["queue"],
    )
    yield _gauge(
        "bullmq_stream_pending",
        "Entries that a consumer has and has not acknowledged.",
        (([name], view.active) for name, view in streams),
        ["queue"],
    )
    totals = CounterMetricFamily(
        "bullmq_envelope_jobs",
        "Jobs of list and stream queues, by what became of them.",
        labels=["queue", "outcome"],
    )
    for name, _, view in seen:
        if isinstance(view, EnvelopeOverview):
            for outcome, count in sorted(view.totals.items()):
                totals.add_metric([name, outcome], count)
    yield totals


async def serve(exporter: Exporter, *, host: str, port: int, on_start: Any = None) -> None:
    """Serves until cancelled."""
    async with exporter:
        await exporter.prepare()
        async with exporter.exposition(host=host, port=port) as exposition:
            if on_start is not None:
                on_start(exposition.url)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
