"""`manage.py toril_worker`: runs the tasks of a task backend, and those of the project's `App`."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from typing import Any

from toril.app import AppWorker
from toril.integrations.django.backend import TorilBackend
from toril.integrations.django.calls import project_app
from toril.integrations.django.framework import task_backends
from toril.integrations.django.handlers import handlers_of
from toril.protocol.extras import needed
from toril.protocol.queue_name import QueueName
from toril.worker import Worker

with needed("django"):
    from django.core.management.base import BaseCommand, CommandError

AnyWorker = Worker | AppWorker


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C; running tasks may finish."""

    help = "Runs tasks of django.tasks, and those of the App that TORIL_APP names."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            metavar="NAME[=N]",
            help="A queue to serve, and how many of its tasks run at once; default: all.",
        )
        parser.add_argument("--concurrency", type=int, help="Tasks at once, for each queue.")
        parser.add_argument("--backend", default="default", help="The alias in TASKS.")
        parser.add_argument("--until-idle", action="store_true", help="End when no task waits any more.")

    def handle(self, *_: object, **options: Any) -> None:
        """Called by Django."""
        chosen = _parsed(options["queue"])
        concurrency: int | None = options["concurrency"]
        asyncio.run(self._run(options["backend"], chosen, concurrency, until_idle=options["until_idle"]))

    async def _run(
        self, alias: str, chosen: Mapping[str, int | None], concurrency: int | None, *, until_idle: bool
    ) -> None:
        workers = _workers(alias, chosen, concurrency)
        self.stdout.write(f"serving {', '.join(str(one) for one in _names(workers))}")
        if until_idle:
            await _run_until_idle(workers)
            return
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())


def _workers(alias: str, chosen: Mapping[str, int | None], concurrency: int | None) -> list[AnyWorker]:
    workers: list[AnyWorker] = [
        *_backend_workers(alias, chosen, concurrency),
        *_app_workers(chosen, concurrency),
    ]
    served = {str(name) for name in _names(workers)}
    unknown = [name for name in chosen if str(QueueName.parse(name)) not in served]
    if unknown:
        raise CommandError(f"no tasks are declared for the queue {unknown[0]}")
    if not workers:
        raise CommandError("no tasks are declared: write them in modules named tasks, or set TORIL_APP")
    return workers


def _backend_workers(
    alias: str, chosen: Mapping[str, int | None], concurrency: int | None
) -> Iterable[Worker]:
    backend = task_backends[alias]
    if not isinstance(backend, TorilBackend):
        if project_app() is None:
            raise CommandError(f"the backend {alias} is not TorilBackend")
        return
    handlers = handlers_of(backend)
    options = backend.job_options
    for name in sorted(backend.queues):
        if handlers and (not chosen or name in chosen):
            at_once = chosen.get(name) or concurrency or options.concurrency
            yield Worker(name, handlers, redis=options.redis, prefix=options.prefix, concurrency=at_once)


def _app_workers(chosen: Mapping[str, int | None], concurrency: int | None) -> Iterable[AppWorker]:
    app = project_app()
    if app is None:
        return
    names = [str(name) for name in app.queues if not chosen or str(name) in chosen]
    if not names:
        return
    given = {name: at_once for name in names if (at_once := chosen.get(name) or concurrency)}
    yield app.worker(given if len(given) == len(names) else names)


def _parsed(queues: Iterable[str]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for text in queues:
        name, sign, number = text.partition("=")
        if sign and not number.isdecimal():
            raise CommandError(f"--queue {text}: write NAME or NAME=4")
        found[name] = int(number) if sign else None
    return found


def _names(workers: Iterable[AnyWorker]) -> list[QueueName]:
    return [
        name
        for worker in workers
        for name in (worker.queues if isinstance(worker, AppWorker) else [QueueName.parse(worker.queue)])
    ]


async def _run_until_idle(workers: Iterable[AnyWorker]) -> None:
    for worker in workers:
        async with worker:
            await worker.run_until_idle()
