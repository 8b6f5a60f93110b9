"""`toril worker`: runs your function on the jobs of one queue or several, in one process or many.

Guarantee: SIGTERM and Ctrl-C let jobs in hand finish within the time-out and hand back the others; a second one does
not wait. What is wrong with an option or a handler is said in one line, before the log begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from toril.cli import _worker_options as words
from toril.cli._options import AsJson, Env, Prefix, RedisUrl
from toril.cli._output import emit_line, print_server, print_server_first, say
from toril.cli._process_supervisor import ProcessSupervisor, child_index
from toril.cli._target import QueueName, Target
from toril.cli._worker_process import Order, Served, handler_of, make, work
from toril.errors import InvalidOption
from toril.protocol.worker_options import DEFAULT_MAX_RESULT_SIZE, RateLimit
from toril.transport.default_server import VARIABLE


def add_to(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    *,
    handler: words.Handler = None,
    queue: words.QueueOption,
    concurrency: words.Concurrency = 1,
    processes: words.Processes = 1,
    executor: words.Executor = "auto",
    lock: words.LockDuration = 30.0,
    timeout: words.JobTimeout = None,
    shutdown: words.ShutdownTimeout = 30.0,
    attempts: words.MaxAttempts = None,
    max_result_size: words.MaxResultSize = DEFAULT_MAX_RESULT_SIZE,
    rate: words.RateOption = None,
    retry_unknown: words.RetryUnknown = False,
    unknown_names: words.UnknownNames = "requeue",
    until_idle: words.UntilIdle = False,
    reliable: words.Reliable = False,
    keep_results: words.KeepResults = None,
    group: words.Group = None,
    claim_idle: words.ClaimIdle = None,
    browser: words.Browser = False,
    allow: words.Allow = None,
    http_port: words.HttpPort = None,
    http_host: words.HttpHost = "127.0.0.1",
    log_level: words.LogLevel = "info",
    log_format: words.LogFormat = "text",
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Run a function, or the browser tasks, on the jobs of one queue or several until Ctrl-C or SIGTERM."""
    queues = _queues(queue)
    _check_handler(queues, handler, browser=browser, allow=allow)
    options = _given(concurrency=concurrency, executor=executor, lock_duration=lock)
    options |= _given(shutdown_timeout=shutdown, max_attempts=attempts, rate_limit=_rate(rate))
    some_kinds = _given(reliable=reliable or None, group=group, claim_idle=claim_idle)
    some_kinds |= _given(keep_results=keep_results)
    options["max_result_size"] = max_result_size or None
    options["unknown_errors"] = "transient" if retry_unknown else "permanent"
    options["unknown_names"] = unknown_names
    if not browser:  # its tasks keep to their time themselves, and say what took so long
        options |= _given(job_timeout=timeout)
    order = Order(
        handler=handler,
        served=_served(queues, options, some_kinds),
        target=Target.of(redis, prefix, env, quiet=True),
        allow=tuple(allow or ()),
        page_seconds=timeout,
        contexts=concurrency * len(queues),
        host=http_host,
        port=http_port + (child_index() or 0) if http_port else http_port,
        until_idle=until_idle,
        as_json=as_json,
    )
    _run(order, processes, log_level, log_format)


def _run(order: Order, processes: int, level: words.Level, style: str) -> None:
    # A handler that makes a Queue("…") means the worker's server, in one process as in many.
    os.environ[VARIABLE] = order.target.redis
    made = make(order, handler_of(order))  # what is wrong is refused here, once, rather than in every child
    if child_index() is None:
        _print_server(order, style)
    if processes > 1 and child_index() is None:
        if not order.as_json:
            each = sum(one.options.concurrency for one in made)
            queues = ", ".join(str(one.queue) for one in order.served)
            say(f"{processes} processes with {each} jobs each on {queues}; Ctrl-C ends them")
        raise typer.Exit(_lead(order, processes))
    _write_log(level, style)
    asyncio.run(work(order))


def _print_server(order: Order, style: str) -> None:
    """Which server it is, on standard error; as JSON where that carries a log of JSON lines."""
    if style == "json":
        emit_line({"server": order.target.server}, sys.stderr)
    else:
        print_server_first(order.target.server)
        print_server()


def _lead(order: Order, processes: int) -> int:
    # Children read the address from their environment, which only their own user can see.
    own_words = _without_address(sys.argv[1:])
    return asyncio.run(ProcessSupervisor(own_words, processes, {VARIABLE: order.target.redis}).run())


def _without_address(words: Sequence[str]) -> list[str]:
    left: list[str] = []
    given = iter(words)
    for word in given:
        if word == "--redis":
            next(given, None)
        elif not word.startswith("--redis="):
            left.append(word)
    return left


def _write_log(level: words.Level, style: str) -> None:
    from toril.telemetry.logging import log_as_json, log_as_text

    (log_as_json if style == "json" else log_as_text)(level.upper())


# --- what was said --------------------------------------------------------------------------------------------


def _queues(texts: Sequence[str]) -> tuple[QueueName, ...]:
    queues = tuple(QueueName.parse(text) for text in texts)
    for at, queue in enumerate(queues):
        if queue in queues[:at]:
            raise InvalidOption("--queue", f"names {queue} twice", "leave one of them out")
    return queues


def _check_handler(
    queues: Sequence[QueueName], handler: str | None, *, browser: bool, allow: list[str] | None
) -> None:
    if browser and handler is not None:
        raise InvalidOption("handler", "is given together with --browser", "give one of them")
    if not browser and handler is None:
        raise InvalidOption("handler", "is missing", "write MODULE:FUNCTION, or give --browser")
    for queue in queues if browser else ():
        if queue.kind == "bullmq":
            raise InvalidOption("--browser", f"is not for {queue}", "write --queue list:NAME or stream:NAME")
    if allow and not browser:
        raise InvalidOption("--allow", "is for the browser tasks", "give --browser, or leave it out")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _served(
    queues: Sequence[QueueName], options: dict[str, Any], some_kinds: dict[str, Any]
) -> tuple[Served, ...]:
    """Each queue with its options; of those that not every kind has, it gets the ones that its kind has."""
    for name in some_kinds:
        if not any(queue.kind in _KINDS[name] for queue in queues):
            wanted = " or ".join(f"{kind}:NAME" for kind in _KINDS[name])
            remedy = f"leave it out, or write --queue {wanted}"
            problem = f"is not for {', '.join(map(str, queues))}"
            raise InvalidOption(f"--{name.replace('_', '-')}", problem, remedy)
    return tuple(
        Served(
            queue, {**options, **{name: v for name, v in some_kinds.items() if queue.kind in _KINDS[name]}}
        )
        for queue in queues
    )


_KINDS = {
    "reliable": ("list",),
    "group": ("stream",),
    "claim_idle": ("stream",),
    "keep_results": ("list", "stream"),
}


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
