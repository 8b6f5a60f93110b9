"""Runs the tasks of `django.tasks` in a worker.

Guarantee: plain functions run in threads, coroutine functions in the event loop. Connections to databases that are too
old or broken are closed before and after each attempt, as Django does for requests. Signals `task_started` and
`task_finished` are sent; the latter once, when the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toril.integrations.django.backend import TorilBackend
from toril.integrations.django.framework import (
    AnyTask,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from toril.integrations.django.results import FAILED, RUNNING, SUCCESSFUL, error_of, result_of
from toril.integrations.django.task import TorilTask, declared_tasks
from toril.jobs.base import JobBase
from toril.protocol.extras import needed
from toril.protocol.stack_trace import stack_of
from toril.worker import ConfiguredHandler

with needed("django"):
    from asgiref.sync import iscoroutinefunction, sync_to_async
    from django.db import close_old_connections
    from django.utils import timezone


def handlers_of(backend: TorilBackend) -> dict[str, ConfiguredHandler]:
    """The handlers of all declared tasks of a backend, by the names of their jobs."""
    return {
        path: _handler(backend, task)
        for path, task in declared_tasks().items()
        if task.backend == backend.alias
    }


def _handler(backend: TorilBackend, task: AnyTask) -> ConfiguredHandler:
    own = task.job_timeout if isinstance(task, TorilTask) else None
    timeout = own if own is not None else backend.job_options.job_timeout
    attempt = Attempts(backend, task)
    is_async = iscoroutinefunction(task.func)
    function: Callable[..., Any] = attempt.run_async if is_async else attempt.run
    return ConfiguredHandler(
        function=function, executor="async" if is_async else "thread", job_timeout=timeout
    )


class Attempts:
    """The attempts at jobs of one task."""

    def __init__(self, backend: TorilBackend, task: AnyTask) -> None:
        self._backend = backend
        self._task = task

    def run(self, job: JobBase) -> Any:
        """Runs a plain function, in a thread."""
        close_old_connections()
        try:
            result = self._started(job)
            task_started.send(type(self._backend), task_result=result)
            try:
                value = normalize_json(self._task.func(*self._arguments(result), **result.kwargs))
            except BaseException as error:
                if _is_last(job):
                    task_finished.send(type(self._backend), task_result=_failed(result, error))
                raise
            task_finished.send(type(self._backend), task_result=_successful(result, value))
            return value
        finally:
            close_old_connections()

    async def run_async(self, job: JobBase) -> Any:
        """Runs a coroutine function."""
        await sync_to_async(close_old_connections)()
        try:
            result = self._started(job)
            await task_started.asend(type(self._backend), task_result=result)
            try:
                value = normalize_json(await self._task.func(*self._arguments(result), **result.kwargs))
            except BaseException as error:
                if _is_last(job):
                    await task_finished.asend(type(self._backend), task_result=_failed(result, error))
                raise
            await task_finished.asend(type(self._backend), task_result=_successful(result, value))
            return value
        finally:
            await sync_to_async(close_old_connections)()

    def _started(self, job: JobBase) -> TaskResult[Any]:
        return result_of(self._task, job, self._backend.alias, RUNNING)

    def _arguments(self, result: TaskResult[Any]) -> list[Any]:
        if self._task.takes_context:
            return [TaskContext(task_result=result), *result.args]
        return list(result.args)


def _is_last(job: JobBase) -> bool:
    return job.attempts_made + 1 >= job.max_attempts


def _failed(result: TaskResult[Any], error: BaseException) -> TaskResult[Any]:
    result.errors.append(error_of(stack_of(error)))
    return _finished(result, FAILED)


def _successful(result: TaskResult[Any], value: object) -> TaskResult[Any]:
    object.__setattr__(result, "_return_value", value)
    return _finished(result, SUCCESSFUL)


def _finished(result: TaskResult[Any], status: TaskResultStatus) -> TaskResult[Any]:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
    return result
