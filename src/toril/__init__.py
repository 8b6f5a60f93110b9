"""toril: BullMQ-compatible job queues for Python.

The packages by layer. A package may import those below it, never those above:

    cli                 the command `toril`
    testing             for tests of applications
    dashboard           the web page about queues and jobs
    integrations        FastAPI, Starlette, Litestar, Flask and Django
    browser             the browser tasks
    observe             doctor, exporter, health checks
    spark               sources, sinks, transforms and the pipeline
    lake                tables and their readers without Spark
    sync                the blocking form of the public classes
    app                 App: tasks, middleware, dependencies
    producer | worker   Queue, FlowProducer, schedulers | Worker and its services
    jobs                Job
    events              QueueEvents
    backends            the three kinds of queues for workers: BullMQ, Redis list, Redis stream; dead letters
    transport           connections; the only package that imports the Redis client
    server              the embedded Valkey
    commands            one typed function per script, without I/O
    protocol            the format of keys, jobs, events and envelopes, without I/O
    errors              all errors
    telemetry.hooks     the interface of metrics
    lazy_names          names that a package imports when they are first used

Guarantee: importing `toril` imports none of these packages, hence neither Redis nor Spark nor web code. Each public
name is imported from its package when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.lazy_names import lazy_names

if TYPE_CHECKING:
    from toril import sync
    from toril.app import App, Context, Depends
    from toril.errors import InvalidOption, JobFailed, PermanentError, TorilError, TransientError
    from toril.events import QueueEvents
    from toril.jobs import Job
    from toril.producer import FlowNode, FlowProducer, ListQueue, Queue, StreamQueue
    from toril.protocol.backoff import Backoff
    from toril.protocol.batch import Batch
    from toril.protocol.classify import ErrorCategory, categorize_error
    from toril.protocol.envelope import Envelope
    from toril.protocol.event import Event
    from toril.protocol.group_limits import GroupLimits
    from toril.protocol.options import Deduplication, JobOptions, KeepJobs, NewJob, ParentRef
    from toril.protocol.results_to import ResultsTo
    from toril.protocol.state import JobCounts, JobState
    from toril.protocol.worker_options import RateLimit, WorkerOptions
    from toril.transport import ConnectionPolicy
    from toril.worker import ListWorker, ManualWorker, StreamWorker, Worker

__version__ = "0.1.0"

_MODULE_OF = {
    "App": "toril.app",
    "Backoff": "toril.protocol.backoff",
    "Batch": "toril.protocol.batch",
    "ConnectionPolicy": "toril.transport",
    "Context": "toril.app",
    "Deduplication": "toril.protocol.options",
    "Depends": "toril.app",
    "Envelope": "toril.protocol.envelope",
    "ErrorCategory": "toril.protocol.classify",
    "Event": "toril.protocol.event",
    "FlowNode": "toril.producer",
    "FlowProducer": "toril.producer",
    "GroupLimits": "toril.protocol.group_limits",
    "InvalidOption": "toril.errors",
    "Job": "toril.jobs",
    "JobCounts": "toril.protocol.state",
    "JobFailed": "toril.errors",
    "JobOptions": "toril.protocol.options",
    "JobState": "toril.protocol.state",
    "KeepJobs": "toril.protocol.options",
    "ListQueue": "toril.producer",
    "ListWorker": "toril.worker",
    "ManualWorker": "toril.worker",
    "NewJob": "toril.protocol.options",
    "ParentRef": "toril.protocol.options",
    "PermanentError": "toril.errors",
    "Queue": "toril.producer",
    "QueueEvents": "toril.events",
    "RateLimit": "toril.protocol.worker_options",
    "ResultsTo": "toril.protocol.results_to",
    "StreamQueue": "toril.producer",
    "StreamWorker": "toril.worker",
    "TorilError": "toril.errors",
    "TransientError": "toril.errors",
    "Worker": "toril.worker",
    "WorkerOptions": "toril.protocol.worker_options",
    "categorize_error": "toril.protocol.classify",
}

__all__ = [
    "App",
    "Backoff",
    "Batch",
    "ConnectionPolicy",
    "Context",
    "Deduplication",
    "Depends",
    "Envelope",
    "ErrorCategory",
    "Event",
    "FlowNode",
    "FlowProducer",
    "GroupLimits",
    "InvalidOption",
    "Job",
    "JobCounts",
    "JobFailed",
    "JobOptions",
    "JobState",
    "KeepJobs",
    "ListQueue",
    "ListWorker",
    "ManualWorker",
    "NewJob",
    "ParentRef",
    "PermanentError",
    "Queue",
    "QueueEvents",
    "RateLimit",
    "ResultsTo",
    "StreamQueue",
    "StreamWorker",
    "TorilError",
    "TransientError",
    "Worker",
    "WorkerOptions",
    "__version__",
    "categorize_error",
    "sync",
]


__getattr__ = lazy_names(__name__, _MODULE_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
