"""`toril worker`: runs an app or a function on the jobs of one or several queues, in one or several processes.

Guarantee: after SIGTERM or Ctrl-C running jobs may finish within the time-out, and the others are put back; after a
second signal all are put back. An invalid option or handler is reported in one line, before the log begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from toril.app import App
from toril.app.settings import parse_rate
from toril.cli import _worker_options as cli_options
from toril.cli._handlers import load_handler
from toril.cli._options import AsJson, Env, Prefix, RedisUrl
from toril.cli._output import emit_line, print_line, print_server, set_server_line
from toril.cli._process_supervisor import ProcessSupervisor, child_index
from toril.cli._reload import run_reloading
from toril.cli._target import QueueName, Target
from toril.cli._worker_process import PlannedQueue, WorkerPlan, load_plan_handler, make_workers, run_workers
from toril.errors import InvalidOption
from toril.protocol.batch import Batch
from toril.protocol.worker_options import DEFAULT_MAX_RESULT_SIZE
from toril.transport.default_server import VARIABLE


def add_to(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    context: typer.Context,
    *,
    handler: cli_options.Handler = None,
    queue: cli_options.QueueOption = None,
    concurrency: cli_options.Concurrency = 1,
    processes: cli_options.Processes = 1,
    executor: cli_options.Executor = "auto",
    lock: cli_options.LockDuration = 30.0,
    timeout: cli_options.JobTimeout = None,
    shutdown: cli_options.ShutdownTimeout = 30.0,
    attempts: cli_options.MaxAttempts = None,
    max_result_size: cli_options.MaxResultSize = DEFAULT_MAX_RESULT_SIZE,
    rate: cli_options.RateOption = None,
    batch_size: cli_options.BatchSize = None,
    batch_wait: cli_options.BatchWait = None,
    batch_min_size: cli_options.BatchMinSize = None,
    batch_by: cli_options.BatchBy = None,
    retry_unknown: cli_options.RetryUnknown = False,
    unknown_names: cli_options.UnknownNames = "requeue",
    remove_on_complete: cli_options.RemoveOnComplete = None,
    remove_on_fail: cli_options.RemoveOnFail = None,
    cron_generation: cli_options.CronGenerationOption = 5,
    until_idle: cli_options.UntilIdle = False,
    reliable: cli_options.Reliable = False,
    keep_results: cli_options.KeepResults = None,
    consumer_group: cli_options.ConsumerGroup = None,
    claim_idle: cli_options.ClaimIdle = None,
    browser: cli_options.Browser = False,
    allow: cli_options.Allow = None,
    http_port: cli_options.HttpPort = None,
    http_host: cli_options.HttpHost = "127.0.0.1",
    spark: cli_options.Spark = None,
    max_jobs: cli_options.MaxJobs = None,
    data_schema: cli_options.DataSchema = None,
    tasks: cli_options.Tasks = None,
    reload: cli_options.Reload = False,
    log_level: cli_options.LogLevel = "info",
    log_format: cli_options.LogFormat = "text",
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Run an app, a function, or the browser tasks, on the jobs of one or several queues until Ctrl-C or SIGTERM."""
    if reload:
        raise typer.Exit(asyncio.run(run_reloading([one for one in sys.argv[1:] if one != "--reload"])))
    each = _queues(queue or ())
    queues = tuple(each)
    _check_handler(queues, handler, browser=browser, allow=allow)
    options = _set_options(concurrency=concurrency, executor=executor, lock_duration=lock)
    options |= _set_options(
        shutdown_timeout=shutdown,
        max_attempts=attempts,
        rate_limit=None if rate is None else parse_rate(rate),
    )
    options |= _batch(size=batch_size, wait=batch_wait, min_size=batch_min_size, by=batch_by)
    some_kinds = _set_options(reliable=reliable or None, consumer_group=consumer_group, claim_idle=claim_idle)
    some_kinds |= _set_options(keep_results=keep_results)
    options["max_result_size"] = max_result_size or None
    options["unknown_errors"] = "transient" if retry_unknown else "permanent"
    options["unknown_names"] = unknown_names
    options["cron_generation"] = cron_generation
    options |= _set_options(remove_on_complete=remove_on_complete, remove_on_fail=remove_on_fail)
    if not browser:  # browser tasks have their own time-out, whose error names the page
        options |= _set_options(job_timeout=timeout)
    plan = WorkerPlan(
        handler=handler,
        queues=_planned_queues(each, options, some_kinds),
        options={**options, **some_kinds},
        given=_given(context),
        target=Target.of(redis or _server_of(handler), prefix, env, quiet=True),
        allow=tuple(allow or ()),
        page_seconds=timeout,
        contexts=concurrency * len(queues),
        host=http_host,
        port=http_port + (child_index() or 0) if http_port else http_port,
        until_idle=until_idle,
        as_json=as_json,
    )
    on_spark = _set_options(max_jobs=max_jobs, data_schema=data_schema, tasks=tasks)
    if spark is not None:
        if not queues:
            raise InvalidOption("--queue", "is missing", "write --queue NAME")
        _run_on_spark(plan, spark, on_spark, log_level, log_format, processes=processes, browser=browser)
        return
    for name in on_spark:
        raise InvalidOption(f"--{name.replace('_', '-')}", "is for --spark", "give --spark, or leave it out")
    _run(plan, processes, log_level, log_format)


def _run_on_spark(
    plan: WorkerPlan,
    master: str,
    options: dict[str, Any],
    level: cli_options.Level,
    style: str,
    *,
    processes: int,
    browser: bool,
) -> None:
    from toril.cli._spark_worker import run_on_spark

    for name, is_given in (
        ("--processes", processes > 1),
        ("--browser", browser),
        ("--http-port", plan.port),
    ):
        if is_given:
            raise InvalidOption(name, "is not for --spark", "leave one of them out; see --tasks")
    _print_server(plan, style)
    _write_log(level, style)
    run_on_spark(plan, master, options)


def _run(plan: WorkerPlan, processes: int, level: cli_options.Level, style: str) -> None:
    # A Queue("…") that a handler makes uses the worker's server, with one process and with many.
    os.environ[VARIABLE] = plan.target.redis
    # Invalid options are reported here, once, and not by every child.
    workers = make_workers(plan, load_plan_handler(plan)).workers
    if child_index() is None:
        _print_server(plan, style)
    if processes > 1 and child_index() is None:
        if not plan.as_json:
            each = sum(one.options.concurrency for one in workers)
            queues = ", ".join(one.label for one in workers)
            print_line(f"{processes} processes with {each} jobs each on {queues}; Ctrl-C ends them")
        raise typer.Exit(_run_processes(plan, processes))
    _write_log(level, style)
    asyncio.run(run_workers(plan))


def _print_server(plan: WorkerPlan, style: str) -> None:
    """Prints the server on standard error; as JSON if the log there is JSON."""
    if style == "json":
        emit_line({"server": plan.target.server}, sys.stderr)
    else:
        set_server_line(plan.target.server)
        print_server()


def _run_processes(plan: WorkerPlan, processes: int) -> int:
    # Children read the address from their environment, which other users of the machine cannot see.
    arguments = _without_address(sys.argv[1:])
    return asyncio.run(ProcessSupervisor(arguments, processes, {VARIABLE: plan.target.redis}).run())


def _without_address(arguments: Sequence[str]) -> list[str]:
    left: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--redis":
            next(remaining, None)
        elif not argument.startswith("--redis="):
            left.append(argument)
    return left


def _write_log(level: cli_options.Level, style: str) -> None:
    from toril.telemetry.logging import log_as_json, log_as_text

    (log_as_json if style == "json" else log_as_text)(level.upper())


# --- options ---------------------------------------------------------------------------------------------------


# The names of parameters of the command, where they differ from those of options.
_OPTION_OF = {
    "lock": "lock_duration",
    "timeout": "job_timeout",
    "shutdown": "shutdown_timeout",
    "attempts": "max_attempts",
    "rate": "rate_limit",
    "retry_unknown": "unknown_errors",
}
_NOT_OF_WORKERS = frozenset(
    "handler queue processes until_idle browser allow http_port http_host spark max_jobs data_schema tasks reload "
    "log_level log_format redis prefix as_json context".split()
)


def _given(context: typer.Context) -> frozenset[str]:
    """The options of workers that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    written = [
        name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    ]
    return frozenset(_OPTION_OF.get(name, name) for name in written if name not in _NOT_OF_WORKERS)


def _server_of(handler: str | None) -> str | None:
    """The server that the code of an app names. A child process has the one of its parent."""
    found = None if handler is None or child_index() is not None else load_handler(handler)
    choice = found.connection.choice if isinstance(found, App) else None
    return choice if isinstance(choice, str) else None


def _queues(texts: Sequence[str]) -> dict[QueueName, int | None]:
    """The queues, and the concurrency of those that are written as NAME=CONCURRENCY."""
    queues: dict[QueueName, int | None] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        queue = QueueName.parse(name)
        if queue in queues:
            raise InvalidOption("--queue", f"names {queue} twice", "leave one of them out")
        if equals and not number.isdigit():
            raise InvalidOption("--queue", f"{text!r} has no concurrency", "write NAME=4")
        queues[queue] = int(number) if equals else None
    return queues


def _check_handler(
    queues: Sequence[QueueName], handler: str | None, *, browser: bool, allow: list[str] | None
) -> None:
    if browser and handler is not None:
        raise InvalidOption("handler", "is given together with --browser", "give one of them")
    if not browser and handler is None:
        raise InvalidOption("handler", "is missing", "write MODULE:APP or MODULE:FUNCTION, or give --browser")
    for queue in queues if browser else ():
        if queue.kind == "bullmq":
            raise InvalidOption("--browser", f"is not for {queue}", "write --queue list:NAME or stream:NAME")
    if allow and not browser:
        raise InvalidOption("--allow", "is for the browser tasks", "give --browser, or leave it out")


def _set_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _planned_queues(
    queues: Mapping[QueueName, int | None], options: dict[str, Any], some_kinds: dict[str, Any]
) -> tuple[PlannedQueue, ...]:
    """Returns each queue with its options; options of some kinds are given to queues of these kinds only."""
    for name in some_kinds:
        if queues and not any(queue.kind in _KINDS[name] for queue in queues):
            wanted = " or ".join(f"{kind}:NAME" for kind in _KINDS[name])
            remedy = f"leave it out, or write --queue {wanted}"
            problem = f"is not for {', '.join(map(str, queues))}"
            raise InvalidOption(f"--{name.replace('_', '-')}", problem, remedy)
    return tuple(
        PlannedQueue(
            queue,
            {**options, **{name: v for name, v in some_kinds.items() if queue.kind in _KINDS[name]}},
            concurrency,
        )
        for queue, concurrency in queues.items()
    )


_KINDS = {
    "reliable": ("list",),
    "consumer_group": ("stream",),
    "claim_idle": ("stream",),
    "keep_results": ("list", "stream"),
}


def _batch(**fields: Any) -> dict[str, Any]:
    given = _set_options(**fields)
    if not given:
        return {}
    if "size" not in given:
        option = f"--batch-{next(iter(given)).replace('_', '-')}"
        raise InvalidOption(option, "is given without --batch-size", "give both")
    return {"batch": Batch(**given)}
