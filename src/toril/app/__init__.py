"""Applications: tasks, their queues, resources, dependencies and middleware."""

from __future__ import annotations

from toril.app.app import App
from toril.app.call import TaskCall, Unique
from toril.app.context import BlockingContext, Context
from toril.app.dependencies import Depends
from toril.app.middleware import EnqueueMiddleware, Middleware, Proceed, ProceedEnqueue
from toril.app.task import Task
from toril.app.worker import AppWorker

__all__ = [
    "App",
    "AppWorker",
    "BlockingContext",
    "Context",
    "Depends",
    "EnqueueMiddleware",
    "Middleware",
    "Proceed",
    "ProceedEnqueue",
    "Task",
    "TaskCall",
    "Unique",
]
