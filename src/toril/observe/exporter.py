"""Prometheus metrics of all queues of a server, without a worker.

Guarantee: a scrape is one pipelined read, whatever the number of queues and jobs. Names come from the caller, or from a
search at the start that is repeated in the background. A server that does not answer is a metric
(`bullmq_exporter_up 0`), not an error. No two time series have the same labels. At most `max_queues` queues are
exported; how many are left out is a metric and a line of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from toril.commands.overview import EnvelopeOverview
from toril.errors import InvalidOption, TorilError
from toril.http import HttpServer, Response
from toril.observe.discovery import QueueDiscovery
from toril.observe.health import lengths_of
from toril.observe.overview import QueueFigures, ServerOverview, read_overview, unique_labels
from toril.protocol.extras import needed
from toril.protocol.option_parts import MAX_COUNT, check_integer
from toril.telemetry.prometheus import CONTENT_TYPE
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport.discovery import FoundQueue

with needed("prometheus"):
    from prometheus_client import generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from toril.observe.pipeline_metrics import PipelineMetrics

logger = logging.getLogger("toril.exporter")

DEFAULT_PORT: Final = 9538
# A queue has about thirty time series; another program can make any number of queues.
MAX_QUEUES: Final = 1_000
# A scrape must end before Prometheus' time-out, also when the server does not answer.
POLICY: Final = ConnectionPolicy(connect_timeout=2.0, command_timeout=4.0, call_attempts=1)


class Exporter:
    """Reads the queues of a server and returns Prometheus metrics."""

    def __init__(
        self,
        redis: object = None,
        *,
        queues: Iterable[str] = (),
        prefix: str | None = None,
        env: str = "prod",
        search_every: float = 60.0,
        max_queues: int = MAX_QUEUES,
        lake: str | None = None,
    ) -> None:
        """`queues` are written as in the shell (`emails`, `list:NAME`, `stream:NAME`); none: all that exist.

        Of more than `max_queues` queues, the first by kind and name are exported. With `lake`, the lag of its
        pipeline is served as well.
        """
        self._max_queues = check_integer("max_queues", max_queues, least=1, most=MAX_COUNT)
        self._left_out = 0
        self._transport = AsyncTransport(redis, policy=POLICY)
        self._discovery = QueueDiscovery(
            self._transport, queues, prefix=prefix, env=env, search_every=search_every
        )
        self._scraping = asyncio.Lock()
        self._pipeline = _pipeline_metrics(lake, redis, prefix) if lake is not None else None

    async def prepare(self) -> None:
        """Searches for queues before the first scrape; if the server does not answer, the first scrape searches."""
        with contextlib.suppress(TorilError):
            await self._discovery.queues()

    async def scrape(self) -> bytes:
        """Returns the body of `/metrics`."""
        return encode_metrics(await self.families())

    async def families(self) -> list[Metric]:
        """Returns the same metrics as values."""
        async with self._scraping:
            began = time.monotonic()
            overview, error = await self._read_overview()
            seconds = time.monotonic() - began
            more = await asyncio.to_thread(self._pipeline.families) if self._pipeline is not None else []
        return [*_families(overview, error, seconds, self._left_out), *more]

    async def _read_overview(self) -> tuple[ServerOverview, TorilError | None]:
        try:
            return await read_overview(self._transport, await self._chosen_queues()), None
        except TorilError as error:
            return ServerOverview(queues=[], errors={}, now_ms=0), error

    async def _chosen_queues(self) -> list[FoundQueue]:
        found = await self._discovery.queues()
        left_out = max(0, len(found) - self._max_queues)
        if left_out and left_out != self._left_out:
            logger.warning(
                "%d of %d queues are not exported; raise max_queues (--max-queues)", left_out, len(found)
            )
        self._left_out = left_out
        return found[: self._max_queues]

    def http_server(self, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> HttpServer:
        """Returns a web server with `/metrics`, not yet started."""

        async def metrics() -> Response:
            return Response(await self.scrape(), content_type=CONTENT_TYPE)

        async def alive() -> Response:
            return Response(b"ok\n")

        return HttpServer({"/metrics": metrics, "/healthz": alive}, host=host, port=port)

    async def close(self) -> None:
        await self._discovery.close()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _pipeline_metrics(lake: str, redis: object, prefix: str | None) -> PipelineMetrics:
    from toril.observe.pipeline_metrics import PipelineMetrics

    if redis is not None and not isinstance(redis, str):
        raise InvalidOption("redis", "is a client beside a lake", "give the address of the server")
    return PipelineMetrics(lake, redis, prefix)


def encode_metrics(families: list[Metric]) -> bytes:
    """Returns metrics in the text format of Prometheus."""
    return generate_latest(_Registry(families))


class _Registry:
    """The part of a registry that `generate_latest` uses."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _families(
    overview: ServerOverview, error: TorilError | None, seconds: float, left_out: int
) -> Iterator[Metric]:
    up = GaugeMetricFamily("bullmq_exporter_up", "1: the server answered.", value=0 if error else 1)
    duration = GaugeMetricFamily("bullmq_exporter_scrape_seconds", "How long the read took.", value=seconds)
    unreadable = GaugeMetricFamily(
        "bullmq_exporter_unreadable_queues", "Queues that could not be read.", value=len(overview.errors)
    )
    status = GaugeMetricFamily(
        "bullmq_redis_connection_status", "1 for the status that holds.", labels=["status"]
    )
    status.add_metric(["connected"], 0 if error else 1)
    status.add_metric(["disconnected"], 1 if error else 0)
    omitted = GaugeMetricFamily(
        "bullmq_exporter_left_out_queues", "Queues beyond the limit of the exporter.", value=left_out
    )
    yield from (up, duration, unreadable, omitted, status)
    if error is None:
        yield from _queue_families(overview.queues)
        yield from _stream_families(overview.queues)


def _gauge(name: str, text: str, values: Iterable[tuple[list[str], float]], labels: list[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
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
        "bullmq_queue_paused": ("1: workers take no jobs of the queue.", lambda one: float(one.paused)),
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
    """Returns the names of workers, each once, whatever the reports contain."""
    return unique_labels(dict.fromkeys(str(report.get("worker", "?")) for report in figures.workers))


def _stream_families(queues: list[QueueFigures]) -> Iterator[Metric]:
    overview = [(one.label, one.queue.kind, one.overview) for one in queues]
    streams = [
        (name, view)
        for name, kind, view in overview
        if kind == "stream" and isinstance(view, EnvelopeOverview)
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
    for name, _, view in overview:
        if isinstance(view, EnvelopeOverview):
            counts = sorted(view.totals.items())
            for label, (_, count) in zip(
                unique_labels(outcome for outcome, _ in counts), counts, strict=True
            ):
                totals.add_metric([name, label], count)
    yield totals


async def serve(exporter: Exporter, *, host: str, port: int, on_start: Any = None) -> None:
    """Serves until cancelled."""
    async with exporter:
        await exporter.prepare()
        async with exporter.http_server(host=host, port=port) as http_server:
            if on_start is not None:
                on_start(http_server.url)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
