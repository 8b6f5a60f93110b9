"""The workers of this process, one for each queue: makes, runs and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from toril.app import App, AppWorker
from toril.app.settings import naming_places, only_of_workers, options_from_outside
from toril.cli._handlers import load_handler
from toril.cli._output import emit_line, print_line, warn
from toril.cli._process_supervisor import watch_parent
from toril.cli._service_notifier import ServiceNotifier
from toril.cli._target import QueueName, Target
from toril.cli._worker_group import AnyWorker, FunctionWorkers, WorkerGroup
from toril.errors import ExtraMissing, InvalidOption, TorilError
from toril.http import Response, Route
from toril.observe.health import QueueLengths, worker_exposition
from toril.protocol.extras import needed
from toril.transport import parse_address
from toril.worker import ListWorker, StreamWorker, Worker
from toril.worker.base_worker import BaseWorker

if TYPE_CHECKING:
    from toril.browser import BrowserTasks
    from toril.telemetry.prometheus import PrometheusMetrics


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """One queue, and the options of its worker."""

    queue: QueueName
    options: dict[str, Any]
    concurrency: int | None = None  # of --queue NAME=CONCURRENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The workers that a process runs, and their options."""

    handler: str | None  # None: the browser tasks
    queues: tuple[PlannedQueue, ...]  # none: all of an app
    options: dict[str, Any]  # of all queues
    given: frozenset[str]  # the options that were given on the command line
    target: Target
    allow: tuple[str, ...]
    page_seconds: float | None  # for a whole browser job
    contexts: int  # browser jobs at once, of all queues
    host: str
    port: int | None
    until_idle: bool
    as_json: bool


def load_plan_handler(plan: WorkerPlan) -> object:
    """Returns the handler of the workers; raises InvalidOption if it cannot be loaded."""
    return load_handler(plan.handler) if plan.handler is not None else _browser_tasks(plan)


def _browser_tasks(plan: WorkerPlan) -> BrowserTasks:
    from toril.browser import BrowserOptions, BrowserTasks

    options = BrowserOptions(contexts=plan.contexts, allow=plan.allow)
    if plan.page_seconds is not None:
        options = replace(options, timeout=plan.page_seconds)
    return BrowserTasks(options)


def make_workers(plan: WorkerPlan, handler: object, metrics: PrometheusMetrics | None = None) -> WorkerGroup:
    """Returns the workers, not yet started; raises InvalidOption."""
    if isinstance(handler, App):
        return _app_worker(plan, handler, metrics)
    if isinstance(handler, BaseWorker):
        for name in sorted(plan.given):
            problem = f"is given, and {plan.handler} is a worker with options of its own"
            raise InvalidOption(f"--{name.replace('_', '-')}", problem, "leave it out, or name a function")
        return FunctionWorkers([cast("AnyWorker", handler)])
    if not plan.queues:
        raise InvalidOption("--queue", "is missing", "write --queue NAME, or name an App")
    return FunctionWorkers([_make_worker(one, plan, handler, metrics) for one in plan.queues])


def _app_worker(plan: WorkerPlan, app: App, metrics: PrometheusMetrics | None) -> AppWorker:
    """The worker of an app: options of the command line come before those of the code."""
    app.configure(redis=plan.target.redis)
    options = {name: value for name, value in plan.options.items() if name in plan.given}
    if plan.target.prefix is not None:
        options["prefix"] = plan.target.prefix
    if "env" in plan.given:
        options["env"] = plan.target.env
    if metrics is not None:
        options["metrics"] = metrics
    app.configure(**{name: value for name, value in options.items() if name in ("prefix", "env", "hash_tag")})
    queues = {str(one.queue): one.concurrency for one in plan.queues} or None
    return app.worker(queues, **options)


def _make_worker(
    planned: PlannedQueue, plan: WorkerPlan, handler: Any, metrics: PrometheusMetrics | None
) -> AnyWorker:
    queue, target = planned.queue, plan.target
    with naming_places(queue, plan.given):
        outside = only_of_workers(queue, options_from_outside(queue))
        common: dict[str, Any] = {
            "prefix": target.prefix_of(queue.kind),
            **only_of_workers(queue, planned.options),
            **{name: value for name, value in outside.items() if name not in plan.given},
            "redis": target.redis,
        }
        return _worker_of(planned, handler, _with_key_options(common, plan), metrics)


def _with_key_options(options: dict[str, Any], plan: WorkerPlan) -> dict[str, Any]:
    """The options with the prefix and the environment of the command line, if they were given there."""
    given: dict[str, Any] = {} if plan.target.prefix is None else {"prefix": plan.target.prefix}
    if "env" in plan.given:
        given["env"] = plan.target.env
    return options | given


def _worker_of(
    planned: PlannedQueue,
    handler: Any,
    common: dict[str, Any],
    metrics: PrometheusMetrics | None,
) -> AnyWorker:
    queue = planned.queue
    if planned.concurrency is not None:
        common["concurrency"] = planned.concurrency
    if metrics is not None:
        common["metrics"] = metrics
    match queue.kind:
        case "bullmq":
            return Worker(queue.name, handler, **common)
        case "list":
            return ListWorker(queue.name, handler, **common)
        case "stream":
            return StreamWorker(queue.name, handler, **common)


async def run_workers(plan: WorkerPlan) -> None:
    """Runs until a signal, the end of the parent process, or with --until-idle until no job is left."""
    metrics = _Metrics.of(plan)
    handler = load_plan_handler(plan)
    group = make_workers(plan, handler, metrics.collector)
    workers = group.workers
    if plan.handler is None and not all("keep_results" in one.options for one in plan.queues):
        warn("results of the browser tasks are not kept; keep them with --keep-results SECONDS")
    notifier = ServiceNotifier.from_environment(os.environ)
    reporting = contextlib.nullcontext() if notifier is None else notifier.reporting(workers)
    async with _handler_closed(handler), _http_served(plan, workers, metrics), reporting:
        parent_ended = asyncio.Event()
        watch_parent(parent_ended)
        ending = asyncio.create_task(_stop_when(parent_ended, group))
        try:
            await (_until_idle(group) if plan.until_idle else group.run())
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending
    for one in workers:
        _report(one, as_json=plan.as_json)
    if any(one.left_behind for one in workers):
        # Python would wait for handlers that ignore their cancellation; their jobs are back in the queue.
        sys.stdout.flush()
        os._exit(0)


def _report(one: AnyWorker, *, as_json: bool) -> None:
    if as_json:
        facts = {"worker_id": one.id, "queue": one.label, "processed": one.processed, "failed": one.failed}
        emit_line(facts)
    else:
        print_line(f"{one.id} on {one.label}: {one.processed} jobs completed, {one.failed} failed")


@contextlib.asynccontextmanager
async def _handler_closed(handler: Any) -> AsyncIterator[None]:
    """Closes the browsers of the browser tasks at the end; other handlers have nothing to close."""
    try:
        yield
    finally:
        if hasattr(handler, "pool"):
            await handler.close()


async def _until_idle(group: WorkerGroup) -> None:
    async with group:
        await group.run_until_idle()


async def _stop_when(parent_ended: asyncio.Event, group: WorkerGroup) -> None:
    await parent_ended.wait()
    await group.stop()


# --- HTTP --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics that all workers of this process share, or the reason why there are none."""

    collector: PrometheusMetrics | None = None
    missing: str = ""

    @classmethod
    def of(cls, plan: WorkerPlan) -> _Metrics:
        if plan.port is None:
            return cls()
        try:
            return cls(_collector())
        except ExtraMissing as missing:
            return cls(missing=str(missing))


def _collector() -> PrometheusMetrics:
    with needed("prometheus"):
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        from toril.telemetry.prometheus import PrometheusMetrics
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return PrometheusMetrics(registry)


@contextlib.asynccontextmanager
async def _http_served(
    plan: WorkerPlan, workers: Sequence[AnyWorker], metrics: _Metrics
) -> AsyncIterator[None]:
    if plan.port is None:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        route = await _metrics_route(plan, workers, metrics, stack)
        http_server = worker_exposition(*workers, metrics=route, host=plan.host, port=plan.port)
        await stack.enter_async_context(http_server)
        if metrics.missing:
            warn(f"/metrics is not served: {metrics.missing}")
        if not plan.as_json:
            paths = "/healthz and /readyz" if metrics.missing else "/metrics, /healthz and /readyz"
            print_line(f"serving {http_server.url}{paths}")
        yield


async def _metrics_route(
    plan: WorkerPlan, workers: Sequence[AnyWorker], metrics: _Metrics, stack: contextlib.AsyncExitStack
) -> Route:
    collector = metrics.collector
    if collector is None:
        return _text_route(f"{metrics.missing}\n", HTTPStatus.NOT_IMPLEMENTED)
    from toril.telemetry.prometheus import CONTENT_TYPE

    address = parse_address(plan.target.redis)
    lengths = [QueueLengths(one.keys, address, collector) for one in workers]
    for one in lengths:
        stack.push_async_callback(one.close)

    async def route() -> Response:
        with contextlib.suppress(TorilError):  # without Redis the workers' own figures are served
            for one in lengths:
                await one.refresh()
        return Response(collector.render(), content_type=CONTENT_TYPE)

    return route


def _text_route(text: str, status: HTTPStatus) -> Route:
    async def route() -> Response:
        return Response(text.encode(), status)

    return route
