"""The workers of list and stream queues, on the runtime that all workers share.

Guarantee: handlers, executors, error classes, hooks, metrics and shutdown are those of the BullMQ worker. What differs
is what the queue kind promises, the pause between attempts (min(base · 2^attempt + 0…1, 300 s)), and that a job which
failed for good becomes a dead letter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from toril.backends.base import FinishedJob
from toril.backends.envelopes import EnvelopeDelivery
from toril.backends.redis_list import ListBackend, ListConfig
from toril.backends.redis_stream import StreamBackend, StreamConfig
from toril.commands import envelopes, list_worker, stream_worker
from toril.commands.envelopes import EnvelopeKeys
from toril.errors import InvalidOption, MalformedValue
from toril.protocol.backoff import Backoff, envelope_delay
from toril.protocol.codec import PayloadCodec, to_json
from toril.protocol.compatibility import ENVELOPE_PREFIX
from toril.protocol.duration import Duration, to_ms, to_seconds
from toril.protocol.envelope import TRACE_FIELD, Envelope
from toril.protocol.keys import ListKeys, StreamKeys, consumer_name
from toril.protocol.option_names import knows_its_options
from toril.protocol.outcome import Completed, Failed, Retry
from toril.protocol.refusals import META_FIELD
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy, parse_address
from toril.worker._base import BaseWorker
from toril.worker._executors import Executor, Handler
from toril.worker._process_pool import ProcessExecutor
from toril.worker._reconnect import policy_of
from toril.worker._results import Encode, drop_result, encode_result

EnvelopeHandler = Callable[[Envelope], Awaitable[Any]] | Callable[[Envelope], Any]

MAX_BACKOFF = 300.0  # seconds; the decision record's cap for list and stream queues
# Scheduled jobs looked at to tell whether a retry is due, and at once.
_SCHEDULED_SAMPLE = 1000
_BACKOFF = Backoff("envelope")
_indices = itertools.count()


def _with_record_backoff(options: WorkerOptions) -> WorkerOptions:
    """The options, with the backoff of the record under its name."""
    cap = float(options.max_backoff_delay) if "max_backoff_delay" in options.given else MAX_BACKOFF
    base = float(options.backoff_delay)

    def delay(attempts_made: int, _: BaseException | None) -> float:
        return envelope_delay(attempts_made - 1, base=base, max_delay=cap) if base > 0 else 0.0

    return dataclasses.replace(options, backoffs={**options.backoffs, _BACKOFF.type: delay})


class _EnvelopeWorker(BaseWorker):
    """What the workers of both kinds share."""

    keys: EnvelopeKeys

    def _waited(self, delivery: EnvelopeDelivery) -> float | None:
        if delivery.attempts_made:
            return None
        return self._transport.clock.now_ms() / 1000 - delivery.envelope.meta.enqueued_at.timestamp()

    def __init__(
        self,
        name: str,
        handler: EnvelopeHandler | Mapping[str, EnvelopeHandler],
        redis: Any,
        keep_results: Duration | None,
        policy: ConnectionPolicy | None,
        options: WorkerOptions | None,
        fields: WorkerOptionsDict,
    ) -> None:
        if options is not None and fields:
            raise InvalidOption("options", "is given together with single options", "give one or the other")
        said = options or WorkerOptions.of(fields, type(self))
        self._address = parse_address(redis)
        super().__init__(name, handler, _with_record_backoff(said), policy_of(said, policy))
        if self.options.rate_limit is not None:
            raise InvalidOption(
                "rate_limit", "is offered by BullMQ queues only", "raise RateLimitError instead"
            )
        kept = 0.0 if keep_results is None else to_seconds("keep_results", keep_results, positive=True)
        self._result_ms = to_ms(kept)
        model = self.options.payload
        self._payload: PayloadCodec[Any] | None = None if model is None else PayloadCodec(model)

    def _transports(self) -> tuple[AsyncTransport, BlockingTransport]:
        self._renewer_transport = BlockingTransport(self._address, policy=self._own_policy)
        self._transport = AsyncTransport(self._address, policy=self._own_policy)
        return self._transport, self._renewer_transport

    async def _release(self) -> None:
        self._renewer_transport.close()

    def _make_job(self, delivery: EnvelopeDelivery, blocking: bool) -> Envelope:  # noqa: ARG002
        if self._payload is not None:
            self._payload.decode(
                to_json(delivery.envelope.payload)
            )  # one that does not fit fails before the handler
        return delivery.envelope

    def _job_for_callbacks(self, delivery: EnvelopeDelivery) -> Envelope:
        return delivery.envelope

    def _after(self, settled: FinishedJob, at_ms: int) -> Envelope:  # noqa: ARG002
        delivery: EnvelopeDelivery = settled.delivery
        if isinstance(settled.outcome, (Completed, Failed, Retry)):
            return dataclasses.replace(delivery.envelope, attempts=delivery.attempts_made + 1)
        return delivery.envelope

    def _encode(self) -> Encode:
        return (
            functools.partial(encode_result, self.options.max_result_size) if self._result_ms else drop_result
        )

    def _make_process_executor(self, handler: Handler) -> Executor:
        options = self.options
        limits = {"max_jobs": options.max_jobs_per_process, "max_memory": options.max_process_memory}
        return ProcessExecutor(
            handler, Envelope.from_bytes, Envelope.rewritten, encode=self._encode(), **limits
        )

    def _carrier_of(self, delivery: EnvelopeDelivery) -> str | None:
        carrier = delivery.envelope.meta.extra.get(TRACE_FIELD)
        return carrier if isinstance(carrier, str) else None

    def _backoff_of(self, delivery: EnvelopeDelivery) -> Backoff:  # noqa: ARG002
        return _BACKOFF

    def _now_ms(self) -> int:
        return self._transport.clock.now_ms()

    async def _has_retries(self) -> bool:
        """Whether one of the next scheduled jobs is a retry; those put back for their name are not among them."""
        start = looked_at = 0
        while looked_at < _SCHEDULED_SAMPLE:
            end = start + _SCHEDULED_SAMPLE - 1
            rows = await self._transport.run(envelopes.scheduled(self.keys, start, end))
            tried = [_was_tried(text) for text, _ in rows]
            if True in tried:
                return True
            if len(rows) < _SCHEDULED_SAMPLE:
                return False
            start, looked_at = end + 1, looked_at + tried.count(False)
        return False


def _was_tried(text: bytes) -> bool | None:
    """Whether a scheduled job is a retry; None for one that was put back for its name."""
    try:
        envelope = Envelope.from_bytes(text)
    except MalformedValue:
        return True
    return None if META_FIELD in envelope.meta.extra else envelope.attempts > 0


@knows_its_options("an argument of ListWorker")
class ListWorker(_EnvelopeWorker):
    """Takes jobs of a list queue: at most once, or at least once with `reliable=True`.

    `handler` is a function of one argument, the `Envelope`, or a mapping (such as a `TaskRegistry`) from task types to
    such functions. What it returns is kept for `keep_results` seconds; left out: not at all.
    """

    kind = "list"

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
        super().__init__(name, handler, redis, keep_results, policy, options, fields)
        tagged = self._address.is_cluster if hash_tag is None else hash_tag
        self.keys: ListKeys = ListKeys(name, prefix, env, tagged)
        self.reliable = reliable

    def _make_source(self) -> ListBackend:
        options = self.options
        # A name that no other process ever has: a list of jobs in hand must not be shared by mistake.
        consumer = (
            f"{consumer_name(socket.gethostname(), os.getpid(), next(_indices))}:{secrets.token_hex(4)}"
        )
        terms = ListConfig(
            worker_id=self.id,
            consumer=consumer,
            reliable=self.reliable,
            lock_ms=to_ms(float(options.lock_duration)),
            heartbeat=float(options.heartbeat_interval),
            names=self._names,
            max_attempts=options.max_attempts,
            result_ms=self._result_ms,
        )
        return ListBackend(self.keys, *self._transports(), terms)

    def _waited(self, delivery: EnvelopeDelivery) -> float | None:
        if delivery.attempts_made:
            return None  # when a retry became ready is not written anywhere
        return max(0.0, self._transport.clock.now() - delivery.envelope.meta.enqueued_at.timestamp())

    async def _busy_elsewhere(self) -> bool:
        waiting, _, _, consumers = await self._transport.run_many(list_worker.counts(self.keys))
        if waiting:
            return True
        *in_hand, waiting, _ = await self._transport.run_many(list_worker.recount(self.keys, consumers))
        return bool(waiting) or any(in_hand) or await self._has_retries()


@knows_its_options("an argument of StreamWorker")
class StreamWorker(_EnvelopeWorker):
    """Takes jobs of a stream queue as a consumer of its group: at least once.

    `claim_idle` is how long an entry must have been left alone before it is taken over from a consumer that may be
    dead; `keep` is how many finished entries stay readable in the stream (`None`: all).
    """

    kind = "stream"

    def __init__(
        self,
        name: str,
        handler: EnvelopeHandler | Mapping[str, EnvelopeHandler],
        *,
        redis: Any = None,
        prefix: str = ENVELOPE_PREFIX,
        env: str = "prod",
        hash_tag: bool | None = None,
        group: str = "",
        claim_idle: Duration = 300.0,
        consumer_idle: Duration = 3600.0,
        keep: int | None = 10_000,
        keep_results: Duration | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        super().__init__(name, handler, redis, keep_results, policy, options, fields)
        tagged = self._address.is_cluster if hash_tag is None else hash_tag
        self.keys: StreamKeys = StreamKeys(name, prefix, env, tagged, group)
        self._claim_idle = to_seconds("claim_idle", claim_idle, positive=True)
        self._consumer_idle = to_seconds("consumer_idle", consumer_idle, positive=True)
        if self._claim_idle < 2 * float(self.options.heartbeat_interval):
            raise InvalidOption(
                "claim_idle",
                "is below two heartbeats: jobs that run would be taken away",
                "raise it, or beat faster",
            )
        if keep is not None and keep < 0:
            raise InvalidOption("keep", f"is {keep}", "give 0 or more entries, or None for all")
        self._keep = keep

    def _make_source(self) -> StreamBackend:
        options = self.options
        self.consumer = consumer_name(socket.gethostname(), os.getpid(), next(_indices))
        terms = StreamConfig(
            worker_id=self.id,
            consumer=self.consumer,
            concurrency=options.concurrency,
            claim_idle_ms=to_ms(self._claim_idle),
            own_idle_ms=to_ms(min(float(options.lock_duration), self._claim_idle)),
            consumer_idle_ms=to_ms(self._consumer_idle),
            keep=self._keep,
            heartbeat=float(options.heartbeat_interval),
            names=self._names,
            max_attempts=options.max_attempts,
            result_ms=self._result_ms,
        )
        return StreamBackend(self.keys, *self._transports(), terms, self._may_sweep)

    def _waited(self, delivery: EnvelopeDelivery) -> float | None:
        # The id of an entry is the time at which it was added.
        return max(0.0, self._transport.clock.now() - int(str(delivery.reference).partition("-")[0]) / 1000)

    async def _busy_elsewhere(self) -> bool:
        counts = await self._transport.run(stream_worker.counts(self.keys))
        if counts.waiting or counts.pending:
            return True
        return bool(counts.scheduled) and await self._has_retries()
