"""The classes by which applications add and manage jobs: queues, FlowProducer and schedulers."""

from __future__ import annotations

from toril.producer._inspection import ConnectedWorker, JobLogs, QueueMeta
from toril.producer.flow import FlowNode, FlowProducer, JobNode
from toril.producer.list_queue import ListQueue
from toril.producer.queue import Queue
from toril.producer.schedulers import Scheduler, Schedulers
from toril.producer.stream_queue import StreamQueue

__all__ = [
    "ConnectedWorker",
    "FlowNode",
    "FlowProducer",
    "JobLogs",
    "JobNode",
    "ListQueue",
    "Queue",
    "QueueMeta",
    "Scheduler",
    "Schedulers",
    "StreamQueue",
]
