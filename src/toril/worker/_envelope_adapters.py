"""The job adapters of list and stream queues. Handlers get the `Envelope` of a job."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import secrets
import socket
from typing import Any

from toril.backends.base import BackendHost, FinishedJob
from toril.backends.envelopes import EnvelopeDelivery
from toril.backends.redis_list import ListBackend, ListConfig
from toril.backends.redis_stream import StreamBackend, StreamConfig
from toril.codecs.in_loop import decoded
from toril.commands import envelopes, list_worker, stream_worker
from toril.commands.envelopes import EnvelopeKeys
from toril.errors import MalformedValue
from toril.protocol.backoff import Backoff, envelope_delay
from toril.protocol.codec import PayloadCodec, from_json, to_json
from toril.protocol.duration import to_ms
from toril.protocol.envelope import TRACE_FIELD, Envelope
from toril.protocol.keys import ListKeys, StreamKeys, consumer_name
from toril.protocol.outcome import Completed, Failed, Retry
from toril.protocol.refusals import META_FIELD
from toril.protocol.worker_options import WorkerOptions
from toril.transport import Address, AsyncTransport, BlockingTransport, ConnectionPolicy
from toril.worker._batch_handler import BatchProcessExecutor
from toril.worker._executors import Executor, Handler
from toril.worker._process_pool import ProcessExecutor
from toril.worker._reconnect import one_attempt
from toril.worker._results import Encode, drop_result, encode_result

MAX_BACKOFF = 300.0  # seconds: the longest delay between attempts on list and stream queues
# Scheduled jobs that are read to find a retry, in all and in one call.
_SCHEDULED_SAMPLE = 1000
_BACKOFF = Backoff("envelope")
_indices = itertools.count()


def with_envelope_backoff(options: WorkerOptions) -> WorkerOptions:
    """The options with the backoff of list and stream queues: min(base · 2^attempt + 0…1, 300 s)."""
    longest = float(options.max_backoff_delay) if "max_backoff_delay" in options.given else MAX_BACKOFF
    base = float(options.backoff_delay)

    def delay(attempts_made: int, _: BaseException | None) -> float:
        return envelope_delay(attempts_made - 1, base=base, max_delay=longest) if base > 0 else 0.0

    return dataclasses.replace(options, backoffs={**options.backoffs, _BACKOFF.type: delay})


class _EnvelopePacker:
    """Sends the JSON text of an envelope to a child process."""

    def pack(self, job: Envelope, /) -> bytes:
        return job.rewritten()

    def unpack(self, packed_job: bytes, /) -> Envelope:
        return Envelope.from_bytes(packed_job)


class EnvelopeAdapter:
    """What the adapters of both kinds share."""

    kind: str
    keys: EnvelopeKeys
    _transport: AsyncTransport
    _renewer_transport: BlockingTransport

    def __init__(
        self,
        address: Address,
        policy: ConnectionPolicy,
        options: WorkerOptions,
        worker_id: str,
        result_ms: int,
    ) -> None:
        self._address = address
        self._policy = policy
        self._options = options
        self._worker_id = worker_id
        self._result_ms = result_ms
        model = options.payload
        self._payload: PayloadCodec[Any] | None = None if model is None else PayloadCodec(model)
        self.codecs = options.queue_codecs

    def _open_transports(self) -> tuple[AsyncTransport, BlockingTransport]:
        own_policy = one_attempt(self._policy)
        self._renewer_transport = BlockingTransport(self._address, policy=own_policy)
        self._transport = AsyncTransport(self._address, policy=own_policy)
        return self._transport, self._renewer_transport

    async def close(self) -> None:
        self._renewer_transport.close()

    # --- handlers -------------------------------------------------------------------------------------------

    def make_job(self, delivery: EnvelopeDelivery, _blocking: bool, /) -> Envelope:
        if self._payload is not None and self.codecs is None:
            self._check(self._payload, delivery.envelope)
        return delivery.envelope

    async def decoded(self, job: Envelope, /) -> Envelope:
        if self.codecs is not None:
            raw = await decoded(self.codecs, job.task_type, to_json(job.payload), "data")
            job = dataclasses.replace(job, payload=from_json(raw, dict[str, Any], field="payload"))
        if self._payload is not None:
            self._check(self._payload, job)
        return job

    @staticmethod
    def _check(payload: PayloadCodec[Any], envelope: Envelope) -> None:
        """A payload that does not fit its model fails before the handler runs."""
        payload.decode(to_json(envelope.payload))

    def blocking_job(self, job: Envelope, /) -> Envelope:
        return job

    def make_process_executor(self, handler: Handler, *, batches: bool = False) -> Executor:
        make = BatchProcessExecutor if batches else ProcessExecutor
        return make(
            handler,
            _EnvelopePacker(),
            encode=self.encoder(),
            max_jobs=self._options.max_jobs_per_process,
            max_memory=self._options.max_process_memory,
        )

    def encoder(self) -> Encode:
        if not self._result_ms:
            return drop_result
        return functools.partial(encode_result, self._options.max_result_size)

    def reject_reason(self, _: EnvelopeDelivery, /) -> str | None:
        return None

    def backoff_of(self, _: EnvelopeDelivery, /) -> Backoff:
        return _BACKOFF

    def group_of(self, _: EnvelopeDelivery, /) -> None:
        """Jobs of list and stream queues have no groups."""

    # --- job objects ----------------------------------------------------------------------------------------

    def job_for_callbacks(self, delivery: EnvelopeDelivery, _blocking: bool, /) -> Envelope:
        return delivery.envelope

    def settled_job(self, finished: FinishedJob[EnvelopeDelivery], job: Envelope, _at_ms: int, /) -> Envelope:
        delivery = finished.delivery
        if isinstance(finished.outcome, (Completed, Failed, Retry)):
            return dataclasses.replace(job, attempts=delivery.attempts_made + 1)
        return job

    def payload_of(self, _: Envelope, /) -> object:
        return None

    def set_cancelled(self, _: Envelope, /) -> None:
        """An envelope is a value: it has no such field."""

    def set_lock_lost(self, _: Envelope, /) -> None:
        """An envelope is a value: it has no such field."""

    def waits_for_children(self, _: Envelope, /) -> bool:
        return False

    # --- figures --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._transport.clock.now_ms()

    def trace_carrier(self, delivery: EnvelopeDelivery) -> str | None:
        carrier = delivery.envelope.meta.extra.get(TRACE_FIELD)
        return carrier if isinstance(carrier, str) else None

    async def _has_retries(self) -> bool:
        """Whether one of the next scheduled jobs is a retry; jobs that were put back for their name do not count."""
        start = checked = 0
        while checked < _SCHEDULED_SAMPLE:
            end = start + _SCHEDULED_SAMPLE - 1
            rows = await self._transport.run(envelopes.scheduled(self.keys, start, end))
            retries = [_is_retry(text) for text, _ in rows]
            if True in retries:
                return True
            if len(rows) < _SCHEDULED_SAMPLE:
                return False
            start, checked = end + 1, checked + retries.count(False)
        return False


def _is_retry(text: bytes) -> bool | None:
    """Whether a scheduled job is a retry; None for one that was put back for its name."""
    try:
        envelope = Envelope.from_bytes(text)
    except MalformedValue:
        return True
    return None if META_FIELD in envelope.meta.extra else envelope.attempts > 0


class ListAdapter(EnvelopeAdapter):
    """Makes backends of one list queue."""

    kind = "list"

    def __init__(
        self,
        keys: ListKeys,
        reliable: bool,
        address: Address,
        policy: ConnectionPolicy,
        options: WorkerOptions,
        worker_id: str,
        result_ms: int,
    ) -> None:
        super().__init__(address, policy, options, worker_id, result_ms)
        self.keys: ListKeys = keys
        self._reliable = reliable

    def make_backend(self, names: tuple[str, ...] = (), _: BackendHost | None = None, /) -> ListBackend:
        options = self._options
        # A name that no other process ever has: a worker's own list must not be shared by mistake.
        consumer = consumer_name(socket.gethostname(), os.getpid(), next(_indices))
        config = ListConfig(
            worker_id=self._worker_id,
            consumer=f"{consumer}:{secrets.token_hex(4)}",
            reliable=self._reliable,
            lock_ms=to_ms(float(options.lock_duration)),
            heartbeat=float(options.heartbeat_interval),
            names=names,
            max_attempts=options.max_attempts,
            result_ms=self._result_ms,
        )
        return ListBackend(self.keys, *self._open_transports(), config)

    def seconds_waited(self, delivery: EnvelopeDelivery) -> float | None:
        if delivery.attempts_made:
            return None  # the time at which a retry became ready is not stored
        return max(0.0, self._transport.clock.now() - delivery.envelope.meta.enqueued_at.timestamp())

    async def has_jobs(self) -> bool:
        waiting, _, _, consumers = await self._transport.run_many(list_worker.counts(self.keys))
        if waiting:
            return True
        *active, waiting, _ = await self._transport.run_many(list_worker.recount(self.keys, consumers))
        return bool(waiting) or any(active) or await self._has_retries()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The options of stream workers, in seconds and entries."""

    claim_idle: float
    consumer_idle: float
    keep: int | None


class StreamAdapter(EnvelopeAdapter):
    """Makes backends of one stream queue."""

    kind = "stream"
    consumer: str  # the name of the worker in the consumer group, new at every start

    def __init__(
        self,
        keys: StreamKeys,
        settings: StreamSettings,
        address: Address,
        policy: ConnectionPolicy,
        options: WorkerOptions,
        worker_id: str,
        result_ms: int,
    ) -> None:
        super().__init__(address, policy, options, worker_id, result_ms)
        self.keys: StreamKeys = keys
        self._settings = settings

    def make_backend(self, names: tuple[str, ...] = (), host: BackendHost | None = None) -> StreamBackend:
        options, settings = self._options, self._settings
        self.consumer = consumer_name(socket.gethostname(), os.getpid(), next(_indices))
        config = StreamConfig(
            worker_id=self._worker_id,
            consumer=self.consumer,
            concurrency=options.concurrency * (1 if options.batch is None else options.batch.size),
            claim_idle_ms=to_ms(settings.claim_idle),
            own_idle_ms=to_ms(min(float(options.lock_duration), settings.claim_idle)),
            consumer_idle_ms=to_ms(settings.consumer_idle),
            keep=settings.keep,
            heartbeat=float(options.heartbeat_interval),
            names=names,
            max_attempts=options.max_attempts,
            result_ms=self._result_ms,
        )
        return StreamBackend(self.keys, *self._open_transports(), config, host)

    def seconds_waited(self, delivery: EnvelopeDelivery) -> float | None:
        # The id of an entry is the time at which it was added.
        return max(0.0, self._transport.clock.now() - int(str(delivery.reference).partition("-")[0]) / 1000)

    async def has_jobs(self) -> bool:
        counts = await self._transport.run(stream_worker.counts(self.keys))
        if counts.waiting or counts.pending:
            return True
        return bool(counts.scheduled) and await self._has_retries()
