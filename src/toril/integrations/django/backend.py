"""`TorilBackend`: tasks of `django.tasks` become jobs of BullMQ queues.

The name of a job is the module path of its function, its data are `{"args": […], "kwargs": {…}}`.

Guarantee: in a transaction a job is added after the commit, and not at all after a rollback. A crash between commit and
add loses it: the outbox (`toril.integrations.django.outbox`) does not.
"""

from __future__ import annotations

import functools
import uuid
from datetime import datetime
from typing import Any

from toril.integrations.django.backend_options import BackendOptions
from toril.integrations.django.framework import (
    TASK_MAX_PRIORITY,
    AnyTask,
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from toril.integrations.django.queues import open_queue
from toril.integrations.django.results import READY, result_of, status_of
from toril.integrations.django.task import TorilTask, declared_task
from toril.protocol.extras import needed
from toril.sync import Job, Queue

with needed("django"):
    from django.db import transaction


class TorilBackend(BaseTaskBackend):
    """Adds the jobs, and reads their results."""

    task_class = TorilTask  # type: ignore[assignment]  # its types of arguments are those of one task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.job_options = BackendOptions.of(self.options)

    # --- enqueuing ------------------------------------------------------------------------------------------

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> TaskResult[Any]:
        """Adds the job, or does so when the transaction is committed."""
        self.validate_task(task)
        result: TaskResult[Any] = TaskResult(
            task=task,
            id=str(uuid.uuid4()),
            status=READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self.job_options.enqueue_on_commit:
            transaction.on_commit(functools.partial(self._add, result), using=self.job_options.database)
        else:
            self._add(result)
        return result

    def _add(self, result: TaskResult[Any]) -> None:
        task = result.task
        job = self.queue(task.queue_name).add(
            task.module_path,
            {"args": result.args, "kwargs": result.kwargs},
            **self._options_of(task),
            job_id=result.id,
        )
        object.__setattr__(result, "enqueued_at", job.timestamp)
        task_enqueued.send(type(self), task_result=result)

    def _options_of(self, task: AnyTask) -> dict[str, Any]:
        options: dict[str, Any] = {**self.job_options.removal, "priority": job_priority(task.priority)}
        own = task if isinstance(task, TorilTask) else None
        options["attempts"] = (own and own.attempts) or self.job_options.attempts
        backoff = own.backoff if own is not None and own.backoff is not None else self.job_options.backoff
        if backoff is not None:
            options["backoff"] = backoff
        if task.run_after is not None:
            options["delay"] = _seconds_until(task.run_after)
        return options

    # --- results --------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result of a job in one of the queues of this backend."""
        for name in sorted(self.queues):
            job = self.queue(name).get_job(result_id)
            task = None if job is None else declared_task(job.name)
            if job is not None and task is not None:
                return self._result(task.using(queue_name=name), job)
        raise TaskResultDoesNotExist(result_id)

    def _result(self, task: Task[..., object], job: Job) -> TaskResult[Any]:
        status = status_of(job.get_state())
        job.refresh()  # what the state was read for is stored by now
        return result_of(task, job, self.alias, status)

    def queue(self, name: str) -> Queue:
        """The queue that threads of this process share."""
        return open_queue(name, self.job_options.redis, self.job_options.prefix)


def job_priority(priority: int) -> int:
    """Django's highest priority is 100, its lowest -100; in BullMQ 1 comes first, and jobs without one before it."""
    return TASK_MAX_PRIORITY + 1 - priority


def _seconds_until(time: datetime) -> float:
    # A time without a zone is local time: with USE_TZ=False all are.
    return max(0.0, (time - datetime.now(time.tzinfo)).total_seconds())
