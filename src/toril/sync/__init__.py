"""The blocking versions of the public classes, for code without an event loop.

All of it runs in one event loop in a thread of its own, which starts with the first object and ends with the last; a
forked child gets its own. Jobs (`sync.Job`) call Redis directly.
"""

from __future__ import annotations

from toril.app import BlockingContext as Context
from toril.jobs import BlockingJob as Job
from toril.sync.app import App, AppWorker, Task
from toril.sync.envelopes import ListQueue, ListWorker, StreamQueue, StreamWorker
from toril.sync.flow import FlowProducer
from toril.sync.manual import ManualWorker
from toril.sync.queue import Queue
from toril.sync.queue_events import QueueEvents
from toril.sync.worker import Worker

__all__ = [
    "App",
    "AppWorker",
    "Context",
    "FlowProducer",
    "Job",
    "ListQueue",
    "ListWorker",
    "ManualWorker",
    "Queue",
    "QueueEvents",
    "StreamQueue",
    "StreamWorker",
    "Task",
    "Worker",
]
