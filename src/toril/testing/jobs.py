"""Job objects for unit tests of handlers: without a server.

    job = make_job("send", {"to": "a@b.c"}, attempts_made=2)
    await handle(job)
    assert job.progress == 100 and await job.get_logs() == ["sent"]

Guarantee: log, progress and data are kept in the object; operations that need a server raise `Detached`.
"""

from __future__ import annotations

import uuid
from typing import Any, Unpack

from toril.app import Context, Task
from toril.app.resources import Resources
from toril.jobs import DetachedBlockingJob, DetachedJob, DetachedState
from toril.jobs.detached import detached_record
from toril.protocol.codec import to_json
from toril.protocol.options import JobOptions, JobOptionsDict
from toril.protocol.record import JobRecord

_WHY = "it was made by a test"


def make_job(
    name: str = "test",
    data: object = None,
    *,
    queue: str = "test",
    attempts_made: int = 0,
    **options: Unpack[JobOptionsDict],
) -> DetachedJob:
    """A job for a coroutine function, as a worker would give it. Options are those of `JobOptions`."""
    return DetachedJob(_record(name, data, attempts_made, options), queue, DetachedState(why=_WHY))


def make_blocking_job(
    name: str = "test",
    data: object = None,
    *,
    queue: str = "test",
    attempts_made: int = 0,
    **options: Unpack[JobOptionsDict],
) -> DetachedBlockingJob[Any, Any]:
    """The same for a plain function."""
    return DetachedBlockingJob(_record(name, data, attempts_made, options), queue, DetachedState(why=_WHY))


def make_context(
    task: Task, /, *, resources: Any = None, attempts_made: int = 0, **arguments: Any
) -> Context:
    """The context of a task with these arguments, for unit tests of its function."""
    job = make_job(
        task.name,
        arguments,
        queue=task.queue.name,
        attempts_made=attempts_made,
        **task.job_options.given_fields(),
    )
    return Context(task, job, Resources(resources))


def _record(name: str, data: object, attempts_made: int, options: JobOptionsDict) -> JobRecord:
    given = JobOptions.of(options)
    payload = to_json({} if data is None else data)
    job_id = given.job_id or uuid.uuid4().hex
    return detached_record(name, payload, job_id=job_id, options=given, attempts_made=attempts_made)
