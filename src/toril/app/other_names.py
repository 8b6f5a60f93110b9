"""What other libraries call the methods of tasks and apps: the error of such a name says what it is called here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ENQUEUE: Final = "write {await_}{task}.enqueue(…)"
_WITH_OPTIONS: Final = "write {await_}{task}.options(delay=60).enqueue(…)"
_REMEDIES: Final[Mapping[str, str]] = {
    "delay": _ENQUEUE,  # Celery, RQ
    "send": _ENQUEUE,  # Dramatiq
    "kiq": _ENQUEUE,  # taskiq
    "defer": _ENQUEUE,  # procrastinate
    "defer_async": _ENQUEUE,
    "apply_async": _WITH_OPTIONS,  # Celery
    "send_with_options": _WITH_OPTIONS,  # Dramatiq
    "configure": _WITH_OPTIONS,  # procrastinate
    "apply": "call the function: {await_}{task}(…)",
    "s": "write {task}.bind(…)",
    "si": "write {task}.bind(…)",
    "signature": "write {task}.bind(…)",
    "message": "write {task}.bind(…)",
    "map": "write {await_}{task}.enqueue_many([{task}.bind(…) for … in …])",
    "retry": "raise TransientError in the task, or give @app.task(retry_on=(…,))",
    "request": "take a parameter of the type Context (in a plain function toril.sync.Context): {task}(ctx: Context, …)",
    "on_failure": "use worker.on('failed', …), or middleware",
    "on_success": "use worker.on('completed', …), or middleware",
}
_OF_APPS: Final[Mapping[str, str]] = {
    "run": "run its tasks with `toril worker MODULE:app`, or {await_}app.worker().run()",  # huey, streaq
    "start": "run its tasks with `toril worker MODULE:app`, or {await_}app.worker().run()",  # Celery
    "worker_main": "run its tasks with `toril worker MODULE:app`, or {await_}app.worker().run()",  # Celery
    "run_worker": "run its tasks with `toril worker MODULE:app`, or {await_}app.worker().run()",
    "run_worker_async": "run its tasks with `toril worker MODULE:app`, or {await_}app.worker().run()",  # procrastinate
    "send_task": "write {await_}app.tasks[NAME].enqueue(…)",  # Celery
    "enqueue_job": "write {await_}app.tasks[NAME].enqueue(…)",  # arq
    "add": "write {await_}TASK.enqueue(…), or {await_}app.enqueue(TASK.bind(…))",
    "actor": "write @app.task",  # Dramatiq
    "cron": "write TASK.schedule(cron=…)",  # arq, streaq
    "periodic_task": "write TASK.schedule(cron=…)",  # huey
    "add_periodic_task": "write TASK.schedule(cron=…)",  # Celery
    "conf": "give options to App(…) and app.queue(…)",  # Celery
    "autodiscover_tasks": "import the modules that have the tasks",  # Celery
}


def missing_attribute_of_app(name: str, *, blocking: bool = False) -> AttributeError:
    """The error for an attribute that apps do not have."""
    text = f"an App has no attribute {name!r}"
    remedy = _OF_APPS.get(name)
    if remedy is None:
        return AttributeError(text)
    return AttributeError(f"{text}; {remedy.format(await_='' if blocking else 'await ')}")


def missing_attribute(task: str, name: str, *, blocking: bool = False) -> AttributeError:
    """The error for an attribute that tasks do not have."""
    text = f"task {task!r} has no attribute {name!r}"
    remedy = _REMEDIES.get(name)
    if remedy is None:
        return AttributeError(text)
    return AttributeError(f"{text}; {remedy.format(task=task, await_='' if blocking else 'await ')}")
