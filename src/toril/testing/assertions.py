"""Assertions about what an app has enqueued inside of `app.testing(…)`."""

from __future__ import annotations

from typing import Any

from toril.app import Captured, Task, TaskCall
from toril.errors import InvalidOption


def assert_enqueued(task: Task, /, **arguments: Any) -> TaskCall:
    """Fails unless a call of the task with these arguments was enqueued; returns the newest one."""
    return _captured(task).assert_enqueued(task, **arguments)


def assert_not_enqueued(task: Task, /, **arguments: Any) -> None:
    """Fails if a call of the task with these arguments was enqueued."""
    _captured(task).assert_not_enqueued(task, **arguments)


def _captured(task: Task) -> Captured:
    sender = task.app.call_sender
    if not isinstance(sender, Captured):
        raise InvalidOption("task", "belongs to an app that is not in a mode for tests", "use app.testing(…)")
    return sender
