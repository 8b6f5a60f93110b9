"""`TorilTask`: a task of `django.tasks` with the options of a job, and the decorator that makes it.

    @task(attempts=5, backoff=2.0, job_timeout=30)
    def send(to: str) -> None: ...

Guarantee: a worker runs only functions that were declared as tasks: a job names one of them, and nothing is imported by
the name in a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from toril.integrations.django.framework import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    AnyTask,
    Task,
    TaskContext,
)
from toril.protocol.backoff import Backoff
from toril.protocol.extras import needed
from toril.protocol.option_names import refuse_unknown

with needed("django"):
    from django.utils.module_loading import autodiscover_modules

P = ParamSpec("P")
T = TypeVar("T")
_declared: Final[dict[str, AnyTask]] = {}  # by module path


class TaskOptions(TypedDict, total=False):
    """The options of `task`: Django's, and those of jobs that toril adds."""

    priority: int
    queue_name: str
    backend: str
    attempts: int
    backoff: float | Backoff
    job_timeout: float


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    def __call__(self, function: Callable[P, T], /) -> Task[P, T]: ...


class ContextTaskDecorator(Protocol):
    """Makes a task of a function that takes the context first."""

    def __call__(self, function: Callable[Concatenate[TaskContext, P], T], /) -> Task[P, T]: ...


@overload
def task(function: Callable[P, T], /) -> Task[P, T]: ...
@overload
def task(*, takes_context: Literal[False] = ..., **options: Unpack[TaskOptions]) -> TaskDecorator: ...
@overload
def task(*, takes_context: Literal[True], **options: Unpack[TaskOptions]) -> ContextTaskDecorator: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declares a task, with the options of jobs: Django 6.0's own decorator does not take these.

    Another backend, such as Django's `ImmediateBackend` in tests, runs the task without them.
    """
    refuse_unknown(options, (*TaskOptions.__annotations__, "takes_context"), "an option of a task")
    given = {
        "priority": DEFAULT_TASK_PRIORITY,
        "queue_name": DEFAULT_TASK_QUEUE_NAME,
        "backend": DEFAULT_TASK_BACKEND_ALIAS,
        "run_after": None,
        **options,
    }

    def decorate(decorated: Callable[..., Any]) -> TorilTask:
        return TorilTask(func=decorated, **given)

    return decorate if function is None else decorate(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorilTask(AnyTask):
    """A task whose attempts are repeated, delayed and limited; what is left out follows the backend's options."""

    attempts: int | None = None
    backoff: float | Backoff | None = None
    job_timeout: float | None = None

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        # A changed copy, which `using` makes, does not take the place of the declared task.
        _declared.setdefault(self.module_path, self)


def declared_tasks() -> dict[str, AnyTask]:
    """The tasks in the modules `tasks` of all installed applications, and those that are imported already."""
    autodiscover_modules("tasks")
    return dict(_declared)


def declared_task(path: str) -> AnyTask | None:
    """The task of a module path; None if there is none."""
    return _declared.get(path) or declared_tasks().get(path)
