"""The options that an app declares for its queues: those of `Queue`, `Worker` and their list and stream forms.

Guarantee: an option that its kind of queue does not have is refused, with the nearest name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toril.errors import InvalidOption
from toril.producer import ListQueue, Queue, StreamQueue
from toril.producer.job_builder import Ids
from toril.protocol.codecs import QueueCodecs
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.duration import Duration
from toril.protocol.option_names import refuse_unknown
from toril.protocol.options import JobOptions
from toril.protocol.queue_name import Kind, QueueName
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.transport import Address, ConnectionPolicy
from toril.worker import ConfiguredHandler, ListWorker, StreamWorker, Worker

AnyQueue = Queue | ListQueue | StreamQueue
AnyWorker = Worker | ListWorker | StreamWorker


class QueueOptionsDict(WorkerOptionsDict, total=False):
    """The options of a queue and of its workers, for keyword arguments."""

    prefix: str
    hash_tag: bool | None
    ids: Ids  # BullMQ queues
    defaults: JobOptions  # BullMQ queues
    skip_meta: bool  # BullMQ queues
    env: str  # list and stream queues
    source: str  # list and stream queues
    keep_results: Duration | None  # list and stream queues
    reliable: bool  # list queues
    consumer_group: str  # stream queues
    claim_idle: Duration  # stream queues
    consumer_idle: Duration  # stream queues
    keep: int | None  # stream queues


_WORKER = frozenset(name for name in WorkerOptions.__dataclass_fields__ if name != "given")
_BOTH = {
    "bullmq": {"prefix", "hash_tag"},
    "list": {"prefix", "hash_tag", "env"},
    "stream": {"prefix", "hash_tag", "env", "consumer_group"},
}
_PRODUCER = {
    "bullmq": {"ids", "defaults", "skip_meta", "events_max_len", "metrics", "tracer", "codecs"},
    "list": {"source", "metrics", "tracer", "codecs"},
    "stream": {"source", "metrics", "tracer", "codecs"},
}
_CONSUMER = {
    "bullmq": set[str](),
    "list": {"keep_results", "reliable"},
    "stream": {"keep_results", "claim_idle", "consumer_idle", "keep"},
}


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of one queue, by name."""

    queue: QueueName
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = self.queue.kind
        refuse_unknown(self.fields, sorted(known_names(kind)), f"an option of {kind} queues")
        if kind != "bullmq" and "rate_limit" in self.fields:
            raise InvalidOption(
                "rate_limit", "is offered by BullMQ queues only", "raise RateLimitError instead"
            )
        if self.fields.get("batch") is not None:
            raise InvalidOption(
                "batch", "is not for apps: a task is one call with its own arguments", "use a Worker"
            )
        _ = self.worker_options  # raises if one of them is not valid

    @property
    def worker_options(self) -> WorkerOptions:
        """The options of its workers."""
        return WorkerOptions(**self._chosen(_WORKER))

    def with_defaults(self, defaults: Mapping[str, object]) -> QueueOptions:
        """The same options; those that are left out follow `defaults`, as far as this kind of queue has them."""
        known = known_names(self.queue.kind)
        usable = {name: value for name, value in defaults.items() if name in known}
        return QueueOptions(self.queue, {**usable, **self.fields})

    def with_codecs(self, codecs: QueueCodecs) -> QueueOptions:
        """The same options with these codecs."""
        return QueueOptions(self.queue, {**self.fields, "codecs": codecs})

    def open(self, address: Address, policy: ConnectionPolicy | None) -> AnyQueue:
        """The queue, not yet connected."""
        kind = self.queue.kind
        common = {"redis": address, "policy": policy, **self._chosen(_BOTH[kind] | _PRODUCER[kind])}
        match kind:
            case "bullmq":
                return Queue(self.queue.name, **common)
            case "list":
                return ListQueue(self.queue.name, **common)
            case "stream":
                return StreamQueue(self.queue.name, **common)

    def make_worker(
        self,
        handlers: Mapping[str, ConfiguredHandler],
        address: Address,
        policy: ConnectionPolicy | None,
    ) -> AnyWorker:
        """A worker of the queue, not yet started."""
        kind, name = self.queue.kind, self.queue.name
        common = {"redis": address, "policy": policy, **self._chosen(_BOTH[kind] | _CONSUMER[kind] | _WORKER)}
        match kind:
            case "bullmq":
                return Worker(name, handlers, **common)
            case "list":
                return ListWorker(name, handlers, **common)
            case "stream":
                return StreamWorker(name, handlers, **common)

    def _chosen(self, names: set[str] | frozenset[str]) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if name in names}

    @property
    def prefix(self) -> str:
        """The prefix of the keys of the queue."""
        default = BULLMQ_PREFIX if self.queue.kind == "bullmq" else ENVELOPE_PREFIX
        return str(self.fields.get("prefix") or default)


def worker_names(kind: Kind) -> frozenset[str]:
    """The options that the workers of a kind of queue have."""
    return frozenset(_WORKER | _BOTH[kind] | _CONSUMER[kind])


def known_names(kind: Kind) -> frozenset[str]:
    """The options that a kind of queue has."""
    return frozenset(_WORKER | _BOTH[kind] | _PRODUCER[kind] | _CONSUMER[kind])


def all_names() -> frozenset[str]:
    """The options of all kinds."""
    return known_names("bullmq") | known_names("list") | known_names("stream")
