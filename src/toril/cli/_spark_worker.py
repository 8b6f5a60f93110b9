"""`toril worker --spark`: runs the function on Spark's executors.

Guarantee: the first signal lets running jobs finish, a second one ends the process; its jobs are recovered by other
workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from toril.app import App
from toril.cli._output import emit_line, print_line
from toril.cli._worker_process import PlannedQueue, WorkerPlan, load_plan_handler
from toril.errors import InvalidOption
from toril.protocol.extras import needed


def run_on_spark(plan: WorkerPlan, master: str, options: Mapping[str, Any]) -> None:
    """Runs until a signal or, with --until-idle, until no job is left; prints what was done."""
    with needed("spark"):
        from toril.spark import SparkWorker
    handler = load_plan_handler(plan)
    queues = [_name_of(one) for one in plan.queues]
    own = _of_app(plan, handler) if isinstance(handler, App) else _of_function(plan, handler)
    worker = SparkWorker(
        queues, handler, master=master, redis=plan.target.redis, missing="ignore", **options, **own
    )
    _stop_on_signals(worker)
    done = worker.run_once() if plan.until_idle else worker.run()
    if plan.as_json:
        counts = {"completed": done.completed, "failed": done.failed, "restarts": done.restarts}
        emit_line({"worker_id": worker.id, **counts})
    else:
        print_line(f"{worker.id}: {done.completed} jobs completed, {done.failed} failed")


def _of_app(plan: WorkerPlan, app: App) -> dict[str, Any]:
    """The app says what its workers do; what is written on the command line comes first."""
    if plan.target.prefix is not None:
        app.configure(prefix=plan.target.prefix)
    return {name: value for name, value in plan.options.items() if name in plan.given}


def _of_function(plan: WorkerPlan, handler: object) -> dict[str, Any]:
    if not plan.queues:
        raise InvalidOption("--queue", "is missing", "write --queue NAME, or name an App")
    _send_module(handler)
    return {"prefix": plan.target.prefix_of("bullmq"), **plan.queues[0].options}


def _name_of(planned: PlannedQueue) -> str:
    if planned.queue.kind != "bullmq":
        raise InvalidOption("--queue", f"{planned.queue} is not for --spark", "name a BullMQ queue")
    return planned.queue.name


def _send_module(handler: Any) -> None:
    """Sends the module of the function with it: executors may not have the folder from which it was loaded."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    module = sys.modules.get(getattr(handler, "__module__", ""))
    if module is not None and not module.__name__.startswith("toril."):
        pickler.register_pickle_by_value(module)


def _stop_on_signals(worker: Any) -> None:
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(128 + number)
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
