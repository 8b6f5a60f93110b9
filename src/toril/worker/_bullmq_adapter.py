"""The job adapter of BullMQ queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

from toril.backends.base import BackendHost, FinishedJob
from toril.backends.bullmq import BullmqBackend, BullmqConfig, BullmqDelivery, record_after
from toril.commands import read
from toril.errors import MalformedValue
from toril.jobs import BlockingJob, BlockingJobCalls, Job, JobCalls
from toril.jobs.calls import OnProgress
from toril.protocol.backoff import Backoff
from toril.protocol.codec import PayloadCodec
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD, Refusals
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
        self.on_progress: OnProgress | None = None  # is told of progress that handlers report
        model = options.payload
        self._payload: PayloadCodec[Any] | None = None if model is None else PayloadCodec(model)

    def make_backend(self, names: tuple[str, ...] = (), host: BackendHost | None = None) -> BullmqBackend:
        own_policy = one_attempt(self._policy)
        self._renewer_transport = BlockingTransport(self._address, policy=own_policy)
        # Handlers use connections of their own: a big payload must not delay the fetch loop.
        self._calls = JobCalls(
            AsyncTransport(self._address, policy=self._policy),
            self._keys,
            self._payload,
            on_progress=self.on_progress,
        )
        self._blocking_calls = BlockingJobCalls(
            BlockingTransport(self._address, policy=self._policy),
            self._keys,
            self._payload,
            on_progress=_in_loop(self.on_progress),
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
        )

    async def close(self) -> None:
        await self._calls.close()
        await self._calls.transport.close()
        self._renewer_transport.close()
        self._blocking_calls.transport.close()

    # --- handlers -------------------------------------------------------------------------------------------

    def make_job(self, delivery: BullmqDelivery, blocking: bool) -> AnyJob:
        job = self.job_for_callbacks(delivery, blocking)
        if self._payload is not None:
            _ = job.data  # a payload that does not fit its model fails before the handler runs
        return job

    def blocking_job(self, job: AnyJob) -> BlockingJob:
        return BlockingJob(job.record, self._blocking_calls, job.token)

    def make_process_executor(self, handler: Handler, *, batches: bool = False) -> Executor:
        keys = self._keys
        open_job = functools.partial(
            open_in_child,
            self._address,
            self._policy,
            keys.name,
            keys.prefix,
            keys.hash_tag,
            self._options.payload,
        )
        make = BatchProcessExecutor if batches else ProcessExecutor
        return make(
            handler,
            open_job,
            _transfer_job,
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


def _transfer_job(job: BlockingJob) -> tuple[str, dict[bytes, bytes], str | None]:
    """What a child process needs to create the job object."""
    return job.id, dict(job.record.fields), job.token


def open_in_child(
    address: Address,
    policy: ConnectionPolicy,
    name: str,
    prefix: str,
    hash_tag: bool | None,
    model: object,
    transfer_job: tuple[str, dict[bytes, bytes], str | None],
) -> BlockingJob:
    """The job object of a handler that runs in a child process."""
    job_id, fields, token = transfer_job
    calls = _calls_of(address, policy, name, prefix, hash_tag, model)
    return BlockingJob(JobRecord(job_id, fields), calls, token)


_calls_by_queue: dict[tuple[str, str], BlockingJobCalls] = {}


def _calls_of(
    address: Address, policy: ConnectionPolicy, name: str, prefix: str, hash_tag: bool | None, model: Any
) -> BlockingJobCalls:
    """One object, hence one connection, for each queue of a child process."""
    calls = _calls_by_queue.get((prefix, name))
    if calls is None:
        keys = QueueKeys(name, prefix, hash_tag=hash_tag)
        transport = BlockingTransport(address, policy=policy)
        calls = BlockingJobCalls(transport, keys, None if model is None else PayloadCodec(model))
        _calls_by_queue[prefix, name] = calls
    return calls
