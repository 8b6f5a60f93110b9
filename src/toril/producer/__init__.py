"""The classes by which applications add and manage jobs: queues, FlowProducer and schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.lazy_names import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        "ConnectedWorker": "toril.producer._inspection",
        "FlowNode": "toril.producer.flow",
        "FlowProducer": "toril.producer.flow",
        "JobLogs": "toril.producer._inspection",
        "JobNode": "toril.producer.flow",
        "ListQueue": "toril.producer.list_queue",
        "Queue": "toril.producer.queue",
        "QueueMeta": "toril.producer._inspection",
        "Scheduler": "toril.producer.schedulers",
        "Schedulers": "toril.producer.schedulers",
        "StreamQueue": "toril.producer.stream_queue",
    },
)
