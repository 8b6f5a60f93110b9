"""What applications call: Queue, FlowProducer and schedulers."""

from __future__ import annotations

from toril.producer._inspection import ConnectedWorker, JobLogs
from toril.producer.queue import Queue

__all__ = ["ConnectedWorker", "JobLogs", "Queue"]
