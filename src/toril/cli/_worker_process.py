"""The workers of this process, one for each queue, from their handler to their last word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from toril.cli._handlers import load_handler
from toril.cli._output import emit_line, say, warn
from toril.cli._process_supervisor import watch_parent
from toril.cli._target import QueueName, Target
from toril.errors import ExtraMissing, TorilError
from toril.observe.health import QueueLengths, worker_exposition
from toril.observe.http import Answer, Route
from toril.protocol.extras import needed
from toril.transport import parse_address
from toril.worker import ListWorker, StreamWorker, Worker

AnyWorker = Worker | ListWorker | StreamWorker


@dataclass(frozen=True, slots=True)
class Served:
    """One queue, and the options of its worker."""

    queue: QueueName
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, and how."""

    handler: str | None  # None: the browser tasks
    served: tuple[Served, ...]
    target: Target
    allow: tuple[str, ...]
    page_seconds: float | None  # for a whole browser job
    contexts: int  # browser jobs at once, of all queues
    host: str
    port: int | None
    until_idle: bool
    as_json: bool


def handler_of(order: Order) -> Any:
    """What the workers run; what is wrong with it is said in one line."""
    return load_handler(order.handler) if order.handler is not None else _browser_tasks(order)


def _browser_tasks(order: Order) -> Any:
    from toril.browser import BrowserOptions, BrowserTasks

    limits: dict[str, Any] = {} if order.page_seconds is None else {"timeout": order.page_seconds}
    return BrowserTasks(BrowserOptions(contexts=order.contexts, allow=order.allow, **limits))


def make(order: Order, handler: Any, metrics: Any = None) -> list[AnyWorker]:
    """The workers, not yet started; wrong options are refused."""
    return [_made(one, order.target, handler, metrics) for one in order.served]


def _made(served: Served, target: Target, handler: Any, metrics: Any) -> AnyWorker:
    queue = served.queue
    common: dict[str, Any] = {
        **served.options,
        "redis": target.redis,
        "prefix": target.prefix_of(queue.kind),
    }
    if metrics is not None:
        common["metrics"] = metrics
    if queue.kind == "bullmq":
        return Worker(queue.name, handler, **common)
    made: type[ListWorker | StreamWorker] = ListWorker if queue.kind == "list" else StreamWorker
    return made(queue.name, handler, env=target.env, **common)


async def work(order: Order) -> None:
    """Runs until it is told to stop, its foreman is gone, or nothing is left to do."""
    metrics = _Metrics.of(order)
    handler = handler_of(order)
    made = make(order, handler, metrics.collector)
    if order.handler is None and not all("keep_results" in one.options for one in order.served):
        warn("what the browser tasks bring is thrown away; --keep-results SECONDS keeps it")
    async with _ended(handler), _exposed(order, made, metrics):
        orphaned = asyncio.Event()
        watch_parent(orphaned)
        ending = asyncio.create_task(_stop_when(orphaned, made))
        try:
            await (_until_idle(made, orphaned) if order.until_idle else _until_stopped(made))
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending
    for one in made:
        _report(one, as_json=order.as_json)
    if any(one.left_behind for one in made):
        # Python would wait for handlers that refuse to be cancelled, although their jobs are back in the queue.
        sys.stdout.flush()
        os._exit(0)


def _report(one: AnyWorker, *, as_json: bool) -> None:
    if as_json:
        facts = {"worker_id": one.id, "queue": one.label, "processed": one.processed, "failed": one.failed}
        emit_line(facts)
    else:
        say(f"{one.id} on {one.label}: {one.processed} jobs completed, {one.failed} failed")


@contextlib.asynccontextmanager
async def _ended(handler: Any) -> AsyncIterator[None]:
    """The browser tasks have browsers to end; other handlers have nothing."""
    try:
        yield
    finally:
        if hasattr(handler, "pool"):
            await handler.close()


async def _until_stopped(made: Sequence[AnyWorker]) -> None:
    """Every worker hears every signal; if one gives up, the others end as well, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in made:
                group.create_task(one.run())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _until_idle(made: Sequence[AnyWorker], orphaned: asyncio.Event) -> None:
    """Ends when no queue has anything left: what a job of one queue adds to another is done as well."""
    async with contextlib.AsyncExitStack() as running:
        for one in made:
            await running.enter_async_context(one)
        ended = await _each_until_idle(made, orphaned)
        while len(made) > 1 and ended != (ended := await _each_until_idle(made, orphaned)):
            pass


async def _each_until_idle(made: Sequence[AnyWorker], orphaned: asyncio.Event) -> int:
    """How many jobs have ended when each queue, one after the other, was found idle."""
    for one in made:
        if not orphaned.is_set():
            await one.run_until_idle()
    return sum(one.processed + one.failed for one in made)


async def _stop_when(orphaned: asyncio.Event, made: Sequence[AnyWorker]) -> None:
    await orphaned.wait()
    await asyncio.gather(*(one.stop() for one in made))


# --- what is served over HTTP -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics that all workers of this process share, or why there are none."""

    collector: Any = None
    missing: str = ""

    @classmethod
    def of(cls, order: Order) -> _Metrics:
        if order.port is None:
            return cls()
        try:
            return cls(_collector())
        except ExtraMissing as missing:
            return cls(missing=str(missing))


def _collector() -> Any:
    with needed("prometheus"):
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        from toril.telemetry.prometheus import PrometheusMetrics
    registry = CollectorRegistry()
    for about_the_process in (ProcessCollector, PlatformCollector, GCCollector):
        about_the_process(registry=registry)
    return PrometheusMetrics(registry)


@contextlib.asynccontextmanager
async def _exposed(order: Order, made: Sequence[AnyWorker], metrics: _Metrics) -> AsyncIterator[None]:
    if order.port is None:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        route = await _metrics_route(order, made, metrics, stack)
        exposition = worker_exposition(*made, metrics=route, host=order.host, port=order.port)
        await stack.enter_async_context(exposition)
        if metrics.missing:
            warn(f"/metrics is not served: {metrics.missing}")
        if not order.as_json:
            paths = "/healthz and /readyz" if metrics.missing else "/metrics, /healthz and /readyz"
            say(f"serving {exposition.url}{paths}")
        yield


async def _metrics_route(
    order: Order, made: Sequence[AnyWorker], metrics: _Metrics, stack: contextlib.AsyncExitStack
) -> Route:
    if metrics.missing:
        return _says(f"{metrics.missing}\n", HTTPStatus.NOT_IMPLEMENTED)
    from toril.telemetry.prometheus import CONTENT_TYPE

    address = parse_address(order.target.redis)
    lengths = [QueueLengths(one.keys, address, metrics.collector) for one in made]
    for one in lengths:
        stack.push_async_callback(one.close)

    async def route() -> Answer:
        with contextlib.suppress(TorilError):  # Redis may be away; the workers' own figures are not
            for one in lengths:
                await one.refresh()
        return Answer(metrics.collector.render(), content_type=CONTENT_TYPE)

    return route


def _says(text: str, status: HTTPStatus) -> Route:
    async def route() -> Answer:
        return Answer(text.encode(), status)

    return route
