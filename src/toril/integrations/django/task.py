"""`TorilTask`: a task of `django.tasks` with the options of a job.

    @task(attempts=5, backoff=2.0, job_timeout=30)
    def send(to: str) -> None: ...

Guarantee: a worker runs only functions that were declared as tasks: a job names one of them, and nothing is imported by
the name in a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toril.protocol.backoff import Backoff
from toril.protocol.extras import needed

with needed("django"):
    from django.utils.module_loading import autodiscover_modules
    from django_tasks.base import Task

_declared: Final[dict[str, Task[..., Any]]] = {}  # by module path


@dataclass(frozen=True, slots=True, kw_only=True)
class TorilTask(Task[..., Any]):
    """A task whose attempts are repeated, delayed and limited; what is left out follows the backend's options."""

    attempts: int | None = None
    backoff: float | Backoff | None = None
    job_timeout: float | None = None

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        # A changed copy, which `using` makes, does not take the place of the declared task.
        _declared.setdefault(self.module_path, self)


def declared_tasks() -> dict[str, Task[..., Any]]:
    """The tasks in the modules `tasks` of all installed applications, and those that are imported already."""
    autodiscover_modules("tasks")
    return dict(_declared)


def declared_task(path: str) -> Task[..., Any] | None:
    """The task of a module path; None if there is none."""
    return _declared.get(path) or declared_tasks().get(path)
