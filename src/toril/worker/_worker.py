"""The worker of BullMQ queues."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack

from toril.backends.base import FinishedJob
from toril.backends.bullmq import BullmqBackend, BullmqConfig, BullmqDelivery, record_after
from toril.commands import read
from toril.errors import InvalidOption, MalformedValue
from toril.jobs import BlockingJob, BlockingJobCalls, Job, JobCalls
from toril.protocol.backoff import Backoff
from toril.protocol.codec import PayloadCodec
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_options
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD, Refusals
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy, parse_address
from toril.worker._base import BaseWorker
from toril.worker._executors import Executor, Handler
from toril.worker._process_pool import ProcessExecutor
from toril.worker._reconnect import policy_of
from toril.worker._results import Encode, encode_result

JobHandler = Callable[[Job[Any]], Awaitable[Any]] | Callable[[BlockingJob[Any]], Any]

# Jobs looked at to tell whether a retry is due, and at once.
_DELAYED_SAMPLE = 1000
_TRIED_FIELDS = ("atm", JOB_FIELD, "ats")


@knows_its_options("an argument of Worker")
class Worker(BaseWorker):
    """Takes jobs of a BullMQ queue and runs your handler on them.

    `handler` is a function of one argument, the job, or a mapping from job names to such functions (`"*"` for others).
    A coroutine function runs in the event loop; a plain function runs in a thread and gets the blocking job. What it
    returns is the job's result; what it raises decides between a retry and failure.
    """

    def __init__(
        self,
        name: str,
        handler: JobHandler | Mapping[str, JobHandler],
        *,
        redis: Any = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        if options is not None and fields:
            raise InvalidOption("options", "is given together with single options", "give one or the other")
        if options is not None and not isinstance(options, WorkerOptions):
            raise InvalidOption("options", f"is a {type(options).__name__}", "give WorkerOptions(...)")
        said = options or WorkerOptions.of(fields, type(self))
        self._address = parse_address(redis)
        self.keys = QueueKeys(name, prefix, hash_tag=hash_tag).resolve(cluster=self._address.is_cluster)
        super().__init__(name, handler, said, policy_of(said, policy))
        model = self.options.payload
        self._payload: PayloadCodec[Any] | None = None if model is None else PayloadCodec(model)

    # --- the kind -------------------------------------------------------------------------------------------

    def _make_source(self) -> BullmqBackend:
        options = self.options
        terms = BullmqConfig(
            worker_id=self.id,
            lock_ms=round(float(options.lock_duration) * 1000),
            stalled_ms=round(float(options.stalled_check_interval) * 1000),
            max_stalled=options.max_stalled_count,
            heartbeat=float(options.heartbeat_interval),
            names=self._names,
            limiter=options.rate_limit.to_wire() if options.rate_limit is not None else None,
            max_attempts=options.max_attempts,
            metrics_size=options.metrics_minutes,
            events_max_len=options.events_max_len if "events_max_len" in options.given else None,
        )
        self._renewer_transport = BlockingTransport(self._address, policy=self._own_policy)
        # Handlers speak over a connection of their own: a big payload must not hold up the pump.
        self._calls = JobCalls(AsyncTransport(self._address, policy=self.policy), self.keys, self._payload)
        self._blocking_calls = BlockingJobCalls(
            BlockingTransport(self._address, policy=self.policy), self.keys, self._payload
        )
        self._transport = AsyncTransport(self._address, policy=self._own_policy)
        return BullmqBackend(
            self.keys, self._transport, self._renewer_transport, terms, self._observer.scheduler_broken
        )

    async def _release(self) -> None:
        await self._calls.close()
        await self._calls.transport.close()
        self._renewer_transport.close()
        self._blocking_calls.transport.close()

    def _job_for_callbacks(self, delivery: BullmqDelivery) -> Job[Any] | BlockingJob[Any]:
        return self._job(delivery, all(one.blocking for one in self._executors.values()))

    def _job(self, delivery: BullmqDelivery, blocking: bool) -> Job[Any] | BlockingJob[Any]:
        if blocking:
            return BlockingJob(delivery.record, self._blocking_calls, delivery.token)
        return Job(delivery.record, self._calls, delivery.token)

    def _make_job(self, delivery: BullmqDelivery, blocking: bool) -> Job[Any] | BlockingJob[Any]:
        job = self._job(delivery, blocking)
        if self._payload is not None:
            job.data  # noqa: B018  # a payload that does not fit its model fails before the handler runs
        return job

    def _after(self, settled: FinishedJob, at_ms: int) -> Job[Any] | BlockingJob[Any]:
        job: Job[Any] | BlockingJob[Any] = settled.memo.subject
        job.record = record_after(job.record, settled.delivery, settled.outcome, at_ms)
        return job

    def _make_process_executor(self, handler: Handler) -> Executor:
        opener = functools.partial(
            open_in_child,
            self._address,
            self.policy,
            self.keys.name,
            self.keys.prefix,
            self.keys.hash_tag,
            self.options.payload,
        )
        return ProcessExecutor(
            handler,
            opener,
            _transfer_job,
            encode=self._encode(),
            max_jobs=self.options.max_jobs_per_process,
            max_memory=self.options.max_process_memory,
        )

    def _backoff_of(self, delivery: BullmqDelivery) -> Backoff | None:
        return Backoff.from_wire(delivery.record.opts.get("backoff"))

    def _encode(self) -> Encode:
        return functools.partial(encode_result, self.options.max_result_size)

    def _reject_reason(self, delivery: BullmqDelivery) -> str | None:
        fields = delivery.record.fields
        if b"name" not in fields:
            return "the job's data is gone: it was removed while it waited"
        return delivery.record.deferred_failure if b"defa" in fields else None

    def _now_ms(self) -> int:
        return self._transport.clock.now_ms()

    def _carrier_of(self, delivery: BullmqDelivery) -> str | None:
        try:
            carrier = delivery.record.opts.get("tm")
        except MalformedValue:
            return None  # the attempt itself will tell
        return carrier if isinstance(carrier, str) else None

    def _waited(self, delivery: BullmqDelivery) -> float | None:
        record = delivery.record
        try:
            if delivery.attempts_made or record.processed_on_ms is None:
                return None  # when a retry became ready is not written anywhere
            return (record.processed_on_ms - record.timestamp_ms - record.delay_ms) / 1000
        except MalformedValue:
            return None

    # --- for run_until_idle ---------------------------------------------------------------------------------

    async def _busy_elsewhere(self) -> bool:
        transport = self._calls.transport
        counts = await transport.run(read.get_counts(self.keys))
        if counts["wait"] or counts["prioritized"] or counts["active"]:
            return True
        if not counts["delayed"]:
            return False
        return await self._has_retries(transport)

    async def _has_retries(self, transport: AsyncTransport) -> bool:
        """Whether one of the next delayed jobs is a retry; those put back for their name are not among them."""
        start = looked_at = 0
        while looked_at < _DELAYED_SAMPLE:
            end = start + _DELAYED_SAMPLE - 1
            ids = await transport.run(
                read.get_ranges(self.keys, ["delayed"], start=start, end=end, ascending=True)
            )
            asked = [read.get_fields(self.keys, one, _TRIED_FIELDS) for one in ids]
            found = [one for one in await transport.run_many(asked) if not isinstance(one, Exception)]
            others = [made for made, note, started in found if not _is_refused(note, started)]
            if any(made not in (None, b"0") for made in others):
                return True
            if len(ids) < _DELAYED_SAMPLE:
                return False
            start, looked_at = end + 1, looked_at + len(others)
        return False


def _is_refused(note: bytes | None, attempts_started: bytes | None) -> bool:
    """Whether the last pickup of a job put it back for its name."""
    started = attempts_started or b""
    return started.isdigit() and Refusals.from_field(note, int(started) + 1) is not None


def _transfer_job(job: BlockingJob[Any]) -> tuple[str, dict[bytes, bytes], str | None]:
    """What a child needs to know of a job."""
    return job.id, dict(job.record.fields), job.token


def open_in_child(
    address: Any,
    policy: ConnectionPolicy,
    name: str,
    prefix: str,
    hash_tag: bool | None,
    model: Any,
    transfer_job: tuple[str, dict[bytes, bytes], str | None],
) -> BlockingJob[Any]:
    """The job object of a handler that runs in a process of its own."""
    job_id, fields, token = transfer_job
    calls = _calls_of(address, policy, name, prefix, hash_tag, model)
    return BlockingJob(JobRecord(job_id, fields), calls, token)


_calls_by_queue: dict[tuple[str, str], BlockingJobCalls] = {}


def _calls_of(
    address: Any, policy: ConnectionPolicy, name: str, prefix: str, hash_tag: bool | None, model: Any
) -> BlockingJobCalls:
    """One desk, hence one connection, for each queue of a child."""
    calls = _calls_by_queue.get((prefix, name))
    if calls is None:
        keys = QueueKeys(name, prefix, hash_tag=hash_tag)
        transport = BlockingTransport(address, policy=policy)
        calls = BlockingJobCalls(transport, keys, None if model is None else PayloadCodec(model))
        _calls_by_queue[prefix, name] = calls
    return calls
