"""`toril worker`: runs an app or a function on the jobs of one or several queues, in one or several processes.

Guarantee: after SIGTERM or Ctrl-C running jobs may finish within the time-out, and the others are put back; after a
second signal all are put back. An invalid option or handler is reported in one line, before the log begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import typer

from toril.app import App
from toril.app.settings import parse_options
from toril.cli import _worker_options as cli_options
from toril.cli._handlers import load_handler
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, KeyOptions
from toril.cli._output import emit_line, print_line, print_server, set_server_line
from toril.cli._outside_options import with_outside_options
from toril.cli._process_supervisor import ProcessSupervisor, child_index
from toril.cli._reload import run_reloading
from toril.cli._target import QueueName, Target
from toril.cli._worker_process import PlannedQueue, WorkerPlan, load_plan_handler, make_workers, run_workers
from toril.errors import InvalidOption
from toril.transport.default_server import VARIABLE


def add_to(app: typer.Typer) -> None:
    app.command("worker")(with_option_groups(worker))


def worker(
    context: typer.Context,
    *,
    handler: cli_options.Handler = None,
    queue: cli_options.QueueOption = None,
    settings: cli_options.WorkerSettings,
    batch: cli_options.BatchSettings,
    envelopes: cli_options.EnvelopeSettings,
    process: cli_options.ProcessSettings,
    browser: cli_options.BrowserSettings,
    monitoring: cli_options.MonitoringSettings,
    spark: cli_options.SparkSettings,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Run an app, a function, or the browser tasks, on the jobs of one or several queues until Ctrl-C or SIGTERM."""
    if process.reload:
        raise typer.Exit(asyncio.run(run_reloading([one for one in sys.argv[1:] if one != "--reload"])))
    process, monitoring = with_outside_options(context, process), with_outside_options(context, monitoring)
    queues = _queues(queue or ())
    _check_handler(tuple(queues), handler, browser)
    by_name = _options_by_name(context, settings.option or ())
    options = settings.as_options(browser=browser.browser) | batch.as_options() | by_name
    some_kinds = envelopes.as_options()
    plan = WorkerPlan(
        handler=handler,
        queues=_planned_queues(queues, options, some_kinds),
        options=options | some_kinds,
        given=_given(context) | by_name.keys(),
        target=Target.of(keys.redis or _server_of(handler), keys.prefix, keys.env, quiet=True),
        allow=tuple(browser.allow or ()),
        page_seconds=settings.job_timeout,
        contexts=settings.concurrency * len(queues),
        host=monitoring.http_host,
        port=_port_of_this_process(monitoring.http_port),
        until_idle=process.until_idle,
        as_json=as_json,
    )
    _check_spark(spark, plan, process, browser)
    if spark.spark is None:
        _run(plan, process.processes, monitoring)
    else:
        _run_on_spark(plan, spark, monitoring)


def _run_on_spark(
    plan: WorkerPlan, spark: cli_options.SparkSettings, monitoring: cli_options.MonitoringSettings
) -> None:
    from toril.cli._spark_worker import run_on_spark

    _print_server(plan, monitoring)
    _write_log(monitoring)
    run_on_spark(plan, spark.spark or "", spark.as_options())


def _run(plan: WorkerPlan, processes: int, monitoring: cli_options.MonitoringSettings) -> None:
    # A Queue("…") that a handler makes uses the worker's server, with one process and with many.
    os.environ[VARIABLE] = plan.target.redis
    # Invalid options are reported here, once, and not by every child.
    workers = make_workers(plan, load_plan_handler(plan)).workers
    if child_index() is None:
        _print_server(plan, monitoring)
    if processes > 1 and child_index() is None:
        if not plan.as_json:
            each = sum(one.options.concurrency for one in workers)
            queues = ", ".join(one.label for one in workers)
            print_line(f"{processes} processes with {each} jobs each on {queues}; Ctrl-C ends them")
        raise typer.Exit(_run_processes(plan, processes))
    _write_log(monitoring)
    asyncio.run(run_workers(plan))


def _print_server(plan: WorkerPlan, monitoring: cli_options.MonitoringSettings) -> None:
    """Prints the server on standard error; as JSON if the log there is JSON."""
    if monitoring.log_format == "json":
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


def _write_log(monitoring: cli_options.MonitoringSettings) -> None:
    from toril.telemetry.logging import log_as_json, log_as_text

    (log_as_json if monitoring.log_format == "json" else log_as_text)(monitoring.log_level.upper())


# --- options ---------------------------------------------------------------------------------------------------


# The options of workers by the parameters of the command that set them, where the names differ.
_OPTION_OF = {one.name: "batch" for one in fields(cli_options.BatchSettings)}
_WORKER_PARAMETERS = {
    "env",
    *(
        one.name
        for group in (cli_options.WorkerSettings, cli_options.BatchSettings, cli_options.EnvelopeSettings)
        for one in fields(group)
    ),
}


def _given(context: typer.Context) -> frozenset[str]:
    """The options of workers that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in _WORKER_PARAMETERS}
    return frozenset(
        _OPTION_OF.get(name, name)
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    )


def _options_by_name(context: typer.Context, texts: Sequence[str]) -> dict[str, Any]:
    """The options of --option; one that has an option of its own on the command line is refused."""
    options = parse_options(texts)
    for name in options.keys() & {one.name for one in context.command.params}:
        remedy = f"write --{name.replace('_', '-')} instead"
        raise InvalidOption("--option", f"{name} has an option of its own", remedy)
    return options


def _port_of_this_process(port: int | None) -> int | None:
    return port + (child_index() or 0) if port else port


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
    queues: Sequence[QueueName], handler: str | None, browser: cli_options.BrowserSettings
) -> None:
    if browser.browser and handler is not None:
        raise InvalidOption("handler", "is given together with --browser", "give one of them")
    if not browser.browser and handler is None:
        raise InvalidOption("handler", "is missing", "write MODULE:APP or MODULE:FUNCTION, or give --browser")
    for queue in queues if browser.browser else ():
        if queue.kind == "bullmq":
            raise InvalidOption("--browser", f"is not for {queue}", "write --queue list:NAME or stream:NAME")
    if browser.allow and not browser.browser:
        raise InvalidOption("--allow", "is for the browser tasks", "give --browser, or leave it out")


def _check_spark(
    spark: cli_options.SparkSettings,
    plan: WorkerPlan,
    process: cli_options.ProcessSettings,
    browser: cli_options.BrowserSettings,
) -> None:
    if spark.spark is None:
        for name in spark.as_options():
            option = f"--{name.replace('_', '-')}"
            raise InvalidOption(option, "is for --spark", "give --spark, or leave it out")
        return
    for option, is_given in (
        ("--processes", process.processes > 1),
        ("--browser", browser.browser),
        ("--http-port", plan.port),
    ):
        if is_given:
            raise InvalidOption(option, "is not for --spark", "leave one of them out; see --tasks")


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
