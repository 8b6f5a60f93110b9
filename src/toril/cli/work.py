"""`toril worker`: runs your function on the jobs of a queue, in one process or many.

Guarantee: SIGTERM and Ctrl-C let jobs in hand finish within the time-out and hand back the others; a second one does
not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from toril.cli._complete import complete_queue
from toril.cli._foreman import Foreman, child_index, watch_parent
from toril.cli._handlers import load_handler
from toril.cli._options import AsJson, Env, Prefix, RedisUrl
from toril.cli._output import emit_line, say
from toril.cli._target import QueueName, Target
from toril.contract.errors import InvalidOption, TorilError
from toril.contract.worker_options import RateLimit
from toril.observe.health import QueueLengths, worker_exposition
from toril.observe.http import Answer
from toril.store import parse_address
from toril.worker import ListWorker, StreamWorker, Worker

AnyWorker = Worker | ListWorker | StreamWorker
Level = Literal["debug", "info", "warning", "error"]


def add_to(app: typer.Typer) -> None:
    app.command("worker")(worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be run, and how."""

    handler: str | None  # None: the browser tasks
    queue: QueueName
    target: Target
    options: dict[str, Any]
    allow: tuple[str, ...]
    host: str
    port: int | None
    until_idle: bool
    as_json: bool


def worker(
    *,
    handler: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE[:FUNCTION]",
            help="A function of one argument, or a mapping of them by name; a module alone: its task registry.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        str,
        typer.Option(
            "--queue",
            "-q",
            help="NAME, list:NAME or stream:NAME.",
            autocompletion=complete_queue,
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once, in each process.")
    ] = 1,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, help="Worker processes.")] = 1,
    executor: Annotated[
        Literal["auto", "async", "thread", "process"],
        typer.Option("--executor", help="Where the function runs."),
    ] = "auto",
    lock: Annotated[
        float, typer.Option("--lock-duration", help="Seconds until a silent job counts as stalled.")
    ] = 30.0,
    timeout: Annotated[
        float | None, typer.Option("--job-timeout", help="Seconds an attempt may take.")
    ] = None,
    shutdown: Annotated[
        float, typer.Option("--shutdown-timeout", help="Seconds for jobs in hand to finish.")
    ] = 30.0,
    attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Overrides what jobs ask for.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate-limit", metavar="JOBS/SECONDS", help="Over all workers, e.g. 100/60."),
    ] = None,
    retry_unknown: Annotated[
        bool, typer.Option("--retry-unknown", help="Retry errors of unknown kind, as BullMQ does.")
    ] = False,
    reliable: Annotated[
        bool, typer.Option("--reliable", help="List queues: jobs of dead workers run again.")
    ] = False,
    keep_results: Annotated[
        float | None,
        typer.Option("--keep-results", help="List and stream queues: seconds that results are kept."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="Run the browser tasks: navigate_extract, screenshot, pdf.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="A host or network that pages may come from though it is not public."),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", help="Serve /metrics, /healthz and /readyz; the n-th process adds n."),
    ] = None,
    http_host: Annotated[str, typer.Option("--http-host", help="Where to serve them.")] = "127.0.0.1",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to do.")] = False,
    log_level: Annotated[
        Level, typer.Option("--log-level", help="From which level on lines are written.")
    ] = "info",
    log_format: Annotated[
        Literal["text", "json"], typer.Option("--log-format", help="How they look.")
    ] = "text",
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Run a function on the jobs of a queue until Ctrl-C or SIGTERM."""
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "executor": executor,
        "lock_duration": lock,
        "shutdown_timeout": shutdown,
        "unknown_errors": "transient" if retry_unknown else "permanent",
    }
    given = {"job_timeout": timeout, "max_attempts": attempts, "rate_limit": _rate(rate)}
    options |= {name: value for name, value in given.items() if value is not None}
    where = QueueName.parse(queue)
    options |= _of_kind(where, reliable=reliable, keep_results=keep_results)
    if browser is (handler is not None):
        raise InvalidOption(
            "handler", "is given with --browser" if browser else "is missing", "give one of them"
        )
    index = child_index()
    order = _Order(
        handler=handler,
        queue=where,
        target=Target.of(redis, prefix, env),
        options=options,
        allow=tuple(allow or ()),
        host=http_host,
        port=http_port + (index or 0) if http_port else http_port,
        until_idle=until_idle,
        as_json=as_json,
    )
    if processes > 1 and index is None:
        raise typer.Exit(_lead(order, processes))
    if handler is not None:
        load_handler(handler)  # what is refused is said in one line, before the log begins
    _write_log(log_level, log_format)
    asyncio.run(_work(order))


def _rate(text: str | None) -> RateLimit | None:
    if text is None:
        return None
    count, _, period = text.partition("/")
    try:
        return RateLimit(int(count), float(period or 1))
    except ValueError as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption("rate-limit", f"{text!r} is no rate", "write JOBS/SECONDS, e.g. 100/60") from None


def _of_kind(queue: QueueName, *, reliable: bool, keep_results: float | None) -> dict[str, Any]:
    """Options that not every kind of queue has."""
    given: dict[str, Any] = {}
    if reliable:
        given["reliable"] = True
    if keep_results is not None:
        given["keep_results"] = keep_results
    if given and (queue.kind == "bullmq" or (reliable and queue.kind != "list")):
        raise InvalidOption(", ".join(given), f"is not for {queue}", "see the kinds of queue it is for")
    return given


def _lead(order: _Order, processes: int) -> int:
    made = _make(order, _handler_of(order))  # what is wrong is refused here, once, rather than in every child
    if not order.as_json:
        say(
            f"{processes} processes with {made.options.concurrency} jobs each on {order.queue}; Ctrl-C ends them"
        )
    # Children read the address from their environment, which only their own user can see.
    words = _without_address(sys.argv[1:])
    return asyncio.run(Foreman(words, processes, {"TORIL_REDIS_URL": order.target.redis}).run())


def _without_address(words: Sequence[str]) -> list[str]:
    left: list[str] = []
    given = iter(words)
    for word in given:
        if word == "--redis":
            next(given, None)
        elif not word.startswith("--redis="):
            left.append(word)
    return left


def _write_log(level: Level, style: str) -> None:
    from toril.telemetry.logging import log_as_json, log_as_text

    (log_as_json if style == "json" else log_as_text)(level.upper())


def _handler_of(order: _Order) -> Any:
    if order.handler is not None:
        return load_handler(order.handler)
    from toril.browser import BrowserOptions, BrowserTasks

    if order.queue.kind == "bullmq":
        raise InvalidOption("browser", f"is not for {order.queue}", "write list:NAME or stream:NAME")
    return BrowserTasks(BrowserOptions(contexts=order.options["concurrency"], allow=order.allow))


def _make(order: _Order, handler: Any, metrics: Any = None) -> AnyWorker:
    kind, target = order.queue.kind, order.target
    common: dict[str, Any] = {**order.options, "redis": target.redis, "prefix": target.prefix_of(kind)}
    if metrics is not None:
        common["metrics"] = metrics
    if kind == "bullmq":
        return Worker(order.queue.name, handler, **common)
    made: type[ListWorker | StreamWorker] = ListWorker if kind == "list" else StreamWorker
    return made(order.queue.name, handler, env=target.env, **common)


async def _work(order: _Order) -> None:
    metrics = _collector() if order.port is not None else None
    handler = _handler_of(order)
    made = _make(order, handler, metrics)
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
async def _served(order: _Order, made: AnyWorker, metrics: Any) -> AsyncIterator[None]:
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
