"""One worker in this process, from its handler to its last word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from toril.cli._foreman import watch_parent
from toril.cli._handlers import load_handler
from toril.cli._output import emit_line, say, warn
from toril.cli._target import QueueName, Target
from toril.contract.errors import TorilError
from toril.observe.health import QueueLengths, worker_exposition
from toril.observe.http import Answer
from toril.store import parse_address
from toril.worker import ListWorker, StreamWorker, Worker

AnyWorker = Worker | ListWorker | StreamWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, and how."""

    handler: str | None  # None: the browser tasks
    queue: QueueName
    target: Target
    options: dict[str, Any]
    allow: tuple[str, ...]
    page_seconds: float | None  # for a whole browser job
    host: str
    port: int | None
    until_idle: bool
    as_json: bool


def handler_of(order: Order) -> Any:
    """What the worker runs; what is wrong with it is said in one line."""
    return load_handler(order.handler) if order.handler is not None else _browser_tasks(order)


def _browser_tasks(order: Order) -> Any:
    from toril.browser import BrowserOptions, BrowserTasks

    limits: dict[str, Any] = {} if order.page_seconds is None else {"timeout": order.page_seconds}
    return BrowserTasks(BrowserOptions(contexts=order.options["concurrency"], allow=order.allow, **limits))


def make(order: Order, handler: Any, metrics: Any = None) -> AnyWorker:
    """The worker, not yet started; wrong options are refused."""
    kind, target = order.queue.kind, order.target
    common: dict[str, Any] = {**order.options, "redis": target.redis, "prefix": target.prefix_of(kind)}
    if metrics is not None:
        common["metrics"] = metrics
    if kind == "bullmq":
        return Worker(order.queue.name, handler, **common)
    made: type[ListWorker | StreamWorker] = ListWorker if kind == "list" else StreamWorker
    return made(order.queue.name, handler, env=target.env, **common)


async def work(order: Order) -> None:
    """Runs until it is told to stop, its foreman is gone, or nothing is left to do."""
    metrics = _collector() if order.port is not None else None
    handler = handler_of(order)
    made = make(order, handler, metrics)
    if order.handler is None and "keep_results" not in order.options:
        warn("what the browser tasks bring is thrown away; --keep-results SECONDS keeps it")
    async with _ended(handler), _served(order, made, metrics):
        orphaned = asyncio.Event()
        watch_parent(orphaned)
        ending = asyncio.create_task(_stop_when(orphaned, made))
        try:
            await (_until_idle(made) if order.until_idle else made.run())
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending
    if order.as_json:
        emit_line({"worker_id": made.id, "processed": made.processed, "failed": made.failed})
    else:
        say(f"{made.id}: {made.processed} jobs completed, {made.failed} failed")
    if made.left_behind:
        # Python would wait for handlers that refuse to be cancelled, although their jobs are back in the queue.
        sys.stdout.flush()
        os._exit(0)


@contextlib.asynccontextmanager
async def _ended(handler: Any) -> AsyncIterator[None]:
    """The browser tasks have browsers to end; other handlers have nothing."""
    try:
        yield
    finally:
        if hasattr(handler, "pool"):
            await handler.close()


async def _until_idle(made: AnyWorker) -> None:
    async with made:
        await made.run_until_idle()


async def _stop_when(orphaned: asyncio.Event, made: AnyWorker) -> None:
    await orphaned.wait()
    await made.stop()


def _collector() -> Any:
    try:
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        from toril.telemetry.prometheus import PrometheusMetrics
    except ImportError:
        return None
    registry = CollectorRegistry()
    for about_the_process in (ProcessCollector, PlatformCollector, GCCollector):
        about_the_process(registry=registry)
    return PrometheusMetrics(registry)


@contextlib.asynccontextmanager
async def _served(order: Order, made: AnyWorker, metrics: Any) -> AsyncIterator[None]:
    if order.port is None:
        yield
        return
    lengths = (
        QueueLengths(made.keys, parse_address(order.target.redis), metrics) if metrics is not None else None
    )

    async def route() -> Answer:
        from toril.telemetry.prometheus import CONTENT_TYPE

        if lengths is not None:
            with contextlib.suppress(TorilError):  # Redis may be away; the worker's own figures are not
                await lengths.refresh()
        return Answer(metrics.render(), content_type=CONTENT_TYPE)

    try:
        async with worker_exposition(
            made, metrics=route if metrics is not None else None, host=order.host, port=order.port
        ) as exposition:
            if not order.as_json:
                say(f"serving {exposition.url}/metrics, /healthz and /readyz")
            yield
    finally:
        if lengths is not None:
            await lengths.close()
