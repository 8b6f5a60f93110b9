"""A direct call of a coroutine function that needs injected values.

Guarantee: values that the caller gives are used as they are; the others are injected, with a job that is in no queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from toril.app.context import Context
from toril.app.dependencies import Provider, Scope
from toril.app.resources import Resources
from toril.app.task import Task
from toril.jobs import DetachedJob, DetachedState
from toril.jobs.detached import detached_record
from toril.protocol.codec import to_json


async def call(
    task: Task,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    resources: Resources,
    overrides: Mapping[Provider, Provider],
) -> object:
    """Calls the function of a task."""
    injected = task.parameters.injected
    given = {name: value for name, value in named.items() if name in injected}
    own = {name: value for name, value in named.items() if name not in injected}
    arguments = task.arguments.bind(args, own)
    missing = {name: source for name, source in injected.items() if name not in given}
    record = detached_record(task.name, to_json(arguments), job_id=uuid.uuid4().hex)
    job = DetachedJob(record, task.queue.name, DetachedState(why="the task was called directly"))
    async with AsyncExitStack() as stack:
        context: Context = Context(task, job, resources)
        values = await Scope(context, stack, overrides).values(missing)
        return await task.function(**arguments, **given, **values)
