"""Applications: tasks, their queues, resources, dependencies and middleware."""

from __future__ import annotations

from toril.app.app import App
from toril.app.call import TaskCall, Unique
from toril.app.captured import Captured
from toril.app.composition import Composition, Parallel, ParallelJobs, chain, parallel, parallel_then
from toril.app.context import BlockingContext, Context
from toril.app.dependencies import Depends
from toril.app.middleware import EnqueueMiddleware, EnqueueWrapper, Middleware, Proceed, ProceedEnqueue
from toril.app.task import Task
from toril.app.worker import AppWorker

__all__ = [
    "App",
    "AppWorker",
    "BlockingContext",
    "Captured",
    "Composition",
    "Context",
    "Depends",
    "EnqueueMiddleware",
    "EnqueueWrapper",
    "Middleware",
    "Parallel",
    "ParallelJobs",
    "Proceed",
    "ProceedEnqueue",
    "Task",
    "TaskCall",
    "Unique",
    "chain",
    "parallel",
    "parallel_then",
]
