"""The job adapter of BullMQ queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import dataclass
from typing import Any

from toril.backends.base import BackendHost, FinishedJob
from toril.backends.bullmq import (
    BullmqBackend,
    BullmqConfig,
    BullmqDelivery,
    ResultForwarder,
    record_after,
)
from toril.codecs.in_loop import decoded
from toril.commands import read
from toril.errors import MalformedValue
from toril.jobs import BlockingJob, BlockingJobCalls, Job, JobCalls
from toril.jobs.calls import OnProgress
from toril.protocol.backoff import Backoff
from toril.protocol.codec import PayloadCodec
from toril.protocol.codecs import QueueCodecs
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD, Refusals
from toril.protocol.results_to import ResultsTo
from toril.protocol.worker_options import WorkerOptions, keep_to_wire
from toril.transport import Address, AsyncTransport, BlockingTransport, ConnectionPolicy
from toril.worker._batch_handler import BatchProcessExecutor
from toril.worker._executors import Executor, Handler
from toril.worker._job_adapter import EXPIRED
from toril.worker._process_pool import ProcessExecutor
from toril.worker._reconnect import one_attempt
from toril.worker._results import Encode, encode_result

# Delayed jobs that are read to find a retry, in all and in one call.
_DELAYED_SAMPLE = 1000
_ATTEMPT_FIELDS = ("atm", JOB_FIELD, "ats")

AnyJob = Job | BlockingJob


# As in Node.
STARTED_TOO_OFTEN = "job started more than allowable limit"


def _in_loop(on_progress: OnProgress | None) -> OnProgress | None:
    """The same for threads: callbacks of a worker run in its event loop."""
    if on_progress is None:
        return None
    loop = asyncio.get_running_loop()

    def report(job: Any, progress: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(on_progress, job, progress)

    return report


class BullmqAdapter:
    """Makes backends and job objects of one BullMQ queue."""

    kind = "bullmq"
    _transport: AsyncTransport
    _renewer_transport: BlockingTransport
    _calls: JobCalls
    _blocking_calls: BlockingJobCalls

    def __init__(
        self,
        keys: QueueKeys,
        address: Address,
        policy: ConnectionPolicy,
        options: WorkerOptions,
        worker_id: str,
    ) -> None:
        self._keys = keys
        self._address = address
        self._policy = policy
        self._options = options
        self._worker_id = worker_id
        self._max_started = options.max_started_attempts
        self.on_progress: OnProgress | None = None  # is called with progress that handlers report
        model = options.payload
        self._payload: PayloadCodec[Any] | None = None if model is None else PayloadCodec(model)
        self.codecs = options.queue_codecs
        self._forwarder = (
            None
            if options.results_to is None
            else ResultForwarder.between(
                keys, ResultsTo.of(options.results_to), is_cluster=address.is_cluster
            )
        )

    def make_backend(self, names: tuple[str, ...] = (), host: BackendHost | None = None) -> BullmqBackend:
        own_policy = one_attempt(self._policy)
        self._renewer_transport = BlockingTransport(self._address, policy=own_policy)
        # Handlers use connections of their own: a big payload must not delay the fetch loop.
        self._calls = JobCalls(
            AsyncTransport(self._address, policy=self._policy),
            self._keys,
            self._payload,
            on_progress=self.on_progress,
            codecs=self.codecs,
        )
        self._blocking_calls = BlockingJobCalls(
            BlockingTransport(self._address, policy=self._policy),
            self._keys,
            self._payload,
            on_progress=_in_loop(self.on_progress),
            codecs=self.codecs,
        )
        self._transport = AsyncTransport(self._address, policy=own_policy)
        return BullmqBackend(self._keys, self._transport, self._renewer_transport, self._config(names), host)

    def _config(self, names: tuple[str, ...]) -> BullmqConfig:
        options = self._options
        return BullmqConfig(
            worker_id=self._worker_id,
            lock_ms=round(float(options.lock_duration) * 1000),
            stalled_ms=round(float(options.stalled_check_interval) * 1000),
            max_stalled=options.max_stalled_count,
            heartbeat=float(options.heartbeat_interval),
            names=names,
            limiter=options.rate_limit.to_wire() if options.rate_limit is not None else None,
            keep_completed=keep_to_wire(options.remove_on_complete),
            keep_failed=keep_to_wire(options.remove_on_fail),
            max_attempts=options.max_attempts,
            metrics_size=options.metrics_minutes,
            events_max_len=options.events_max_len if "events_max_len" in options.given else None,
            repeat_rules=options.repeat_rules,
            forwarder=self._forwarder,
        )

    async def close(self) -> None:
        await self._calls.close()
        await self._calls.transport.close()
        self._renewer_transport.close()
        self._blocking_calls.transport.close()

    # --- handlers -------------------------------------------------------------------------------------------

    def make_job(self, delivery: BullmqDelivery, blocking: bool) -> AnyJob:
        job = self.job_for_callbacks(delivery, blocking)
        if self._payload is not None and self.codecs is None:
            _ = job.data  # a payload that does not fit its model fails before the handler runs
        return job

    async def decoded(self, job: AnyJob) -> AnyJob:
        if self.codecs is not None:
            job.set_decoded_data(await decoded(self.codecs, job.name, job.record.raw_data, "data"))
        if self._payload is not None:
            _ = job.data
        return job

    def blocking_job(self, job: AnyJob) -> BlockingJob:
        blocking = BlockingJob(job.record, self._blocking_calls, job.token)
        if job.data_is_decoded:
            blocking.set_decoded_data(job.record.raw_data)
        return blocking

    def make_process_executor(self, handler: Handler, *, batches: bool = False) -> Executor:
        make = BatchProcessExecutor if batches else ProcessExecutor
        return make(
            handler,
            BullmqPacker(self._address, self._policy, self._keys, self._options.payload, self.codecs),
            encode=self.encoder(),
            max_jobs=self._options.max_jobs_per_process,
            max_memory=self._options.max_process_memory,
        )

    def encoder(self) -> Encode:
        return functools.partial(encode_result, self._options.max_result_size)

    def reject_reason(self, delivery: BullmqDelivery) -> str | None:
        fields = delivery.record.fields
        if b"name" not in fields:
            return "the job's data is gone: it was removed while it waited"
        if self._max_started is not None and delivery.attempts_started > self._max_started:
            return STARTED_TOO_OFTEN
        if b'"expires"' in fields.get(b"opts", b"") and self._is_expired(delivery.record):
            return EXPIRED
        return delivery.record.deferred_failure if b"defa" in fields else None

    def _is_expired(self, record: JobRecord) -> bool:
        try:
            expires = record.opts.get("expires")
            due = record.timestamp_ms + expires if isinstance(expires, (int, float)) else None
        except MalformedValue:
            return False  # the attempt itself reports it
        return due is not None and self._transport.clock.now_ms() > due

    def backoff_of(self, delivery: BullmqDelivery) -> Backoff | None:
        return Backoff.from_wire(delivery.record.opts.get("backoff"))

    def group_of(self, delivery: BullmqDelivery) -> str | None:
        try:
            return delivery.record.group
        except MalformedValue:
            return None  # the attempt itself fails with this error

    # --- job objects ----------------------------------------------------------------------------------------

    def job_for_callbacks(self, delivery: BullmqDelivery, blocking: bool) -> AnyJob:
        if blocking:
            return BlockingJob(delivery.record, self._blocking_calls, delivery.token)
        return Job(delivery.record, self._calls, delivery.token)

    def settled_job(self, finished: FinishedJob[BullmqDelivery], job: AnyJob, at_ms: int) -> AnyJob:
        job.record = record_after(job.record, finished.delivery, finished.outcome, at_ms)
        return job

    def payload_of(self, job: AnyJob) -> object:
        return job.data

    def set_cancelled(self, job: AnyJob) -> None:
        job.cancelled = True

    def set_lock_lost(self, job: AnyJob) -> None:
        job.lock_lost = True

    def waits_for_children(self, job: AnyJob) -> bool:
        return job.waits_for_children

    # --- figures --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._transport.clock.now_ms()

    def trace_carrier(self, delivery: BullmqDelivery) -> str | None:
        try:
            carrier = delivery.record.opts.get("tm")
        except MalformedValue:
            return None  # the attempt itself fails with this error
        return carrier if isinstance(carrier, str) else None

    def seconds_waited(self, delivery: BullmqDelivery) -> float | None:
        record = delivery.record
        try:
            if delivery.attempts_made or record.processed_on_ms is None:
                return None  # the time at which a retry became ready is not stored
            return (record.processed_on_ms - record.timestamp_ms - record.delay_ms) / 1000
        except MalformedValue:
            return None

    async def has_jobs(self) -> bool:
        counts = await self._calls.transport.run(read.get_counts(self._keys))
        if counts["wait"] or counts["prioritized"] or counts["active"]:
            return True
        return bool(counts["delayed"]) and await self._has_retries(self._calls.transport)

    async def _has_retries(self, transport: AsyncTransport) -> bool:
        """Whether one of the next delayed jobs is a retry; jobs that were put back for their name do not count."""
        start = checked = 0
        while checked < _DELAYED_SAMPLE:
            end = start + _DELAYED_SAMPLE - 1
            ids = await transport.run(
                read.get_ranges(self._keys, ["delayed"], start=start, end=end, ascending=True)
            )
            commands = [read.get_fields(self._keys, one, _ATTEMPT_FIELDS) for one in ids]
            found = [one for one in await transport.run_many(commands) if not isinstance(one, Exception)]
            others = [made for made, note, started in found if not _is_refused(note, started)]
            if any(made not in (None, b"0") for made in others):
                return True
            if len(ids) < _DELAYED_SAMPLE:
                return False
            start, checked = end + 1, checked + len(others)
        return False


def _is_refused(note: bytes | None, attempts_started: bytes | None) -> bool:
    """Whether the last worker that fetched a job put it back for its name."""
    started = attempts_started or b""
    return started.isdigit() and Refusals.from_field(note, int(started) + 1) is not None


# --- handlers in processes ----------------------------------------------------------------------------------


PackedJob = tuple[str, dict[bytes, bytes], str | None]  # id, fields of the hash, token


@dataclass(frozen=True, slots=True)
class BullmqPacker:
    """Sends a BullMQ job to a child process, where the job object gets a connection of its own.

    The data was decoded in the worker.
    """

    address: Address
    policy: ConnectionPolicy
    keys: QueueKeys
    model: Any  # of the payload
    codecs: QueueCodecs | None

    def pack(self, job: BlockingJob, /) -> PackedJob:
        return job.id, dict(job.record.fields), job.token

    def unpack(self, packed_job: PackedJob, /) -> BlockingJob:
        job_id, fields, token = packed_job
        job: BlockingJob = BlockingJob(JobRecord(job_id, fields), self._calls(), token)
        if self.codecs is not None:
            job.set_decoded_data(job.record.raw_data)
        return job

    def _calls(self) -> BlockingJobCalls:
        """One object, hence one connection, for each queue of a child process."""
        found = _calls_by_queue.get(self.keys)
        if found is None:
            transport = BlockingTransport(self.address, policy=self.policy)
            payload = None if self.model is None else PayloadCodec(self.model)
            found = BlockingJobCalls(transport, self.keys, payload, codecs=self.codecs)
            _calls_by_queue[self.keys] = found
        return found


_calls_by_queue: dict[QueueKeys, BlockingJobCalls] = {}
