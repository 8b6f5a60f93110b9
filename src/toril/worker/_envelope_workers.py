"""The workers of list and stream queues, on the runtime of all workers.

Guarantee: handlers, executors, error classes, callbacks, metrics and shutdown are those of the BullMQ worker. What
differs is what the kind of queue promises, the backoff (min(base · 2^attempt + 0…1, 300 s)), and that a job which
failed for good becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from toril.backends.envelopes import EnvelopeDelivery
from toril.errors import InvalidOption
from toril.jobs import JobBatch
from toril.protocol.compatibility import ENVELOPE_PREFIX
from toril.protocol.duration import Duration, to_ms, to_seconds
from toril.protocol.envelope import Envelope
from toril.protocol.keys import ListKeys, StreamKeys
from toril.protocol.option_names import knows_its_options
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict, new_worker_id
from toril.transport import ConnectionPolicy, parse_address
from toril.worker._envelope_adapters import (
    ListAdapter,
    StreamAdapter,
    StreamSettings,
    with_envelope_backoff,
)
from toril.worker._generators import refuse_generators
from toril.worker._handlers import checked_handlers, options_of
from toril.worker._reconnect import policy_of
from toril.worker.base_worker import BaseWorker
from toril.worker.configured_handler import ConfiguredHandler

EnvelopeHandler = (
    Callable[[Envelope], Awaitable[Any]]
    | Callable[[Envelope], Any]
    | Callable[[JobBatch[Envelope]], Awaitable[Any]]
    | Callable[[JobBatch[Envelope]], Any]
    | ConfiguredHandler
)


@knows_its_options("an argument of ListWorker")
class ListWorker(BaseWorker[EnvelopeDelivery]):
    """Fetches jobs of a list queue: at most once, or at least once with `reliable=True`.

    `handler` is a function of one argument, the `Envelope`, or a mapping from task types to
    such functions. What it returns is kept for `keep_results` seconds; left out: not at all.
    """

    def __init__(
        self,
        name: str,
        handler: EnvelopeHandler | Mapping[str, EnvelopeHandler],
        *,
        redis: Any = None,
        prefix: str = ENVELOPE_PREFIX,
        env: str = "prod",
        hash_tag: bool | None = None,
        reliable: bool = False,
        keep_results: Duration | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        given = options_of(options, fields, type(self))
        address = parse_address(redis)
        chosen, own_policy = with_envelope_backoff(given), policy_of(given, policy)
        worker_id = chosen.worker_id or new_worker_id()
        handlers = checked_handlers(handler, chosen)
        _refuse_bullmq_options(chosen)
        _refuse_generators(handlers)
        result_ms = _result_ms(keep_results)
        tagged = address.is_cluster if hash_tag is None else hash_tag
        self.keys = ListKeys(name, prefix, env, tagged)
        self.reliable = reliable
        adapter = ListAdapter(self.keys, reliable, address, own_policy, chosen, worker_id, result_ms)
        super().__init__(name, handlers, worker_id, chosen, own_policy, address, adapter)


@knows_its_options("an argument of StreamWorker")
class StreamWorker(BaseWorker[EnvelopeDelivery]):
    """Fetches jobs of a stream queue as a member of its consumer group: at least once.

    `claim_idle` is how long an entry must be idle before it is claimed from a consumer that may be dead; `keep` is how
    many finished entries stay readable in the stream (`None`: all).
    """

    def __init__(
        self,
        name: str,
        handler: EnvelopeHandler | Mapping[str, EnvelopeHandler],
        *,
        redis: Any = None,
        prefix: str = ENVELOPE_PREFIX,
        env: str = "prod",
        hash_tag: bool | None = None,
        consumer_group: str = "",
        claim_idle: Duration = 300.0,
        consumer_idle: Duration = 3600.0,
        keep: int | None = 10_000,
        keep_results: Duration | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        given = options_of(options, fields, type(self))
        address = parse_address(redis)
        chosen, own_policy = with_envelope_backoff(given), policy_of(given, policy)
        worker_id = chosen.worker_id or new_worker_id()
        handlers = checked_handlers(handler, chosen)
        _refuse_bullmq_options(chosen)
        _refuse_generators(handlers)
        result_ms = _result_ms(keep_results)
        tagged = address.is_cluster if hash_tag is None else hash_tag
        self.keys = StreamKeys(name, prefix, env, tagged, consumer_group)
        settings = _stream_settings(claim_idle, consumer_idle, keep, chosen)
        self._stream = StreamAdapter(self.keys, settings, address, own_policy, chosen, worker_id, result_ms)
        super().__init__(name, handlers, worker_id, chosen, own_policy, address, self._stream)

    @property
    def consumer(self) -> str:
        """The name of this worker in the consumer group; every start makes a new one."""
        return self._stream.consumer


def _refuse_generators(handlers: Mapping[str | None, ConfiguredHandler]) -> None:
    for one in handlers.values():
        refuse_generators(
            one.function, "only BullMQ queues store", "use a BullMQ queue, or return one result"
        )


def _refuse_bullmq_options(options: WorkerOptions) -> None:
    if options.batch is not None and options.batch.by == "group":
        raise InvalidOption(
            "batch.by", "is 'group', and only BullMQ queues have groups", 'use "name" or None'
        )
    if options.results_to is not None:
        problem = "is offered by BullMQ queues only"
        raise InvalidOption("results_to", problem, "add the next job in the handler")
    if options.rate_limit is not None:
        raise InvalidOption("rate_limit", "is offered by BullMQ queues only", "raise RateLimitError instead")


def _result_ms(keep_results: Duration | None) -> int:
    return 0 if keep_results is None else to_ms(to_seconds("keep_results", keep_results, positive=True))


def _stream_settings(
    claim_idle: Duration, consumer_idle: Duration, keep: int | None, options: WorkerOptions
) -> StreamSettings:
    settings = StreamSettings(
        claim_idle=to_seconds("claim_idle", claim_idle, positive=True),
        consumer_idle=to_seconds("consumer_idle", consumer_idle, positive=True),
        keep=keep,
    )
    if settings.claim_idle < 2 * float(options.heartbeat_interval):
        raise InvalidOption(
            "claim_idle",
            "is below two heartbeats: jobs that run would be taken away",
            "raise it, or lower heartbeat_interval",
        )
    if keep is not None and keep < 0:
        raise InvalidOption("keep", f"is {keep}", "give 0 or more entries, or None for all")
    return settings
