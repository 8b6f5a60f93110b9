"""Workers: fetch jobs, run handlers, settle outcomes."""

from __future__ import annotations

from toril.worker._envelope_workers import ListWorker, StreamWorker
from toril.worker._results import Returned
from toril.worker._status import WorkerState
from toril.worker._worker import JobHandler, Worker
from toril.worker.configured_handler import ConfiguredHandler, ExecutorCall
from toril.worker.health import WorkerHealth
from toril.worker.manual import ManualWorker

__all__ = [
    "ConfiguredHandler",
    "ExecutorCall",
    "JobHandler",
    "ListWorker",
    "ManualWorker",
    "Returned",
    "StreamWorker",
    "Worker",
    "WorkerHealth",
    "WorkerState",
]
