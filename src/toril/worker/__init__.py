"""Worker, and what it is made of: one role per file."""

from __future__ import annotations

from toril.worker._envelope_workers import ListWorker, StreamWorker
from toril.worker._health import WorkerHealth
from toril.worker._services import WorkerState
from toril.worker._worker import Worker
from toril.worker.registry import TaskRegistry

__all__ = ["ListWorker", "StreamWorker", "TaskRegistry", "Worker", "WorkerHealth", "WorkerState"]
