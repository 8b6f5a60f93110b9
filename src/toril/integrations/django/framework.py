"""The task framework of the project: `django.tasks` of Django 6, or the package `django-tasks`.

Guarantee: the package is used if it is in INSTALLED_APPS or Django is older than 6. Everything else in this folder
imports the framework from here, so that both run the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toril.protocol.extras import needed

with needed("django"):
    import django
    from django.conf import settings


def uses_package() -> bool:
    """Whether tasks are those of the package `django-tasks`."""
    return django.VERSION < (6,) or any(
        name.partition(".")[0] == "django_tasks" for name in settings.INSTALLED_APPS
    )


with needed("django"):
    if TYPE_CHECKING or uses_package():
        from django_tasks import task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import (
            DEFAULT_TASK_BACKEND_ALIAS,
            DEFAULT_TASK_PRIORITY,
            DEFAULT_TASK_QUEUE_NAME,
            TASK_MAX_PRIORITY,
            Task,
            TaskContext,
            TaskError,
            TaskResult,
            TaskResultStatus,
        )
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    else:
        from django.tasks import task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import (
            DEFAULT_TASK_BACKEND_ALIAS,
            DEFAULT_TASK_PRIORITY,
            DEFAULT_TASK_QUEUE_NAME,
            TASK_MAX_PRIORITY,
            Task,
            TaskContext,
            TaskError,
            TaskResult,
            TaskResultStatus,
        )
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    AnyTask = Task  # Django's own class has no type parameters.

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "TASK_MAX_PRIORITY",
    "AnyTask",
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "uses_package",
]
