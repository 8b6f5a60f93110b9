"""What the commands that change jobs share: they call a BullMQ queue once, or once for each job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from toril.cli._output import queue_warnings, warn
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, TorilError
from toril.producer import Queue

T = TypeVar("T")


def run_on_queue(target: Target, queue: str, command: str, call: Callable[[Queue], Awaitable[T]]) -> T:
    """Connects to a BullMQ queue and returns the result of `call`."""
    where = QueueName.parse(queue)

    async def run() -> T:
        async with target.bullmq(where, command) as opened:
            return await call(opened)

    with queue_warnings():
        return asyncio.run(run())


def run_for_each_job(
    target: Target,
    queue: str,
    command: str,
    jobs: list[str],
    call: Callable[[Queue, str], Awaitable[None]],
) -> int:
    """Returns for how many jobs `call` succeeded; if it failed for some, the first error is raised after the last."""

    async def run(opened: Queue) -> tuple[int, list[TorilError]]:
        errors: list[TorilError] = []
        for job_id in jobs:
            try:
                await call(opened, job_id)
            except TorilError as error:
                errors.append(error)
        return len(jobs) - len(errors), errors

    succeeded, errors = run_on_queue(target, queue, command, run)
    raise_first(errors)
    return succeeded


def raise_first(errors: list[TorilError]) -> None:
    """Raises the first error and prints the others as warnings."""
    for error in errors[1:]:
        warn(str(error))
    if errors:
        raise errors[0]


def require_ids_or_all(jobs: list[str] | None, everything: bool) -> None:
    """Raises InvalidOption unless either ids or `--all` were given."""
    if bool(jobs) == everything:
        raise InvalidOption("jobs", "are not chosen", "give ids of jobs, or --all")
