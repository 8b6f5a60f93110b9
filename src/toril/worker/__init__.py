"""Worker, and what it is made of: one role per file."""

from __future__ import annotations

from toril.worker._base import WorkerState
from toril.worker._worker import Worker

__all__ = ["Worker", "WorkerState"]
