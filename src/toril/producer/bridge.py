"""Moves jobs from one queue to another, of any kind: for migrations.

Guarantee: no job is lost or added twice. A job is fetched as a worker fetches it, is added to the target together with
an entry in the target's ledger of transfers, and then is removed from the source. Jobs of a move that was interrupted
are fetched again and found in the ledger. Attempts, times and unknown fields are kept (`_job_conversion`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toril.backends.base import Backend, FinishedJob, settle_and_fetch
from toril.backends.bullmq import BullmqBackend, BullmqConfig
from toril.backends.redis_list import ListBackend, ListConfig
from toril.backends.redis_stream import StreamBackend, StreamConfig
from toril.commands import bridge, envelopes
from toril.commands.once import Calls
from toril.errors import InvalidOption, MalformedValue, NotSerializable, TorilError
from toril.producer._bridge_targets import AnyQueue, Target, target_of, transport_of
from toril.producer._job_conversion import (
    TransferJob,
    envelope_of,
    transfer_id_of,
)
from toril.producer.list_queue import ListQueue
from toril.producer.queue import Queue
from toril.producer.stream_queue import StreamQueue
from toril.protocol.codec import to_json
from toril.protocol.envelope import Envelope
from toril.protocol.keys import ListKeys
from toril.protocol.outcome import Completed, Failed, Outcome, Requeued
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport, BlockingTransport
from toril.transport.waiting import GRACE_SECONDS, result_of, succeeded

# Jobs in one batch. A batch is moved long before a lock of this length expires.
BATCH = 100
LOCK_MS = 60_000


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did."""

    waiting: int  # jobs that were ready to run
    scheduled: int  # jobs that wait for their time, and still do
    known: int  # of both: those that had been added before
    # Jobs that stayed: they are active, or fetched by a move that was interrupted. Run it again when they are done.
    in_hand: int = 0


async def move_jobs(source: AnyQueue, target: AnyQueue, *, limit: int | None = None) -> Moved:
    """Moves the waiting and the scheduled jobs of one queue to another; active jobs stay.

    Run it again after a crash: jobs that were being moved are fetched again after a minute, and are not added twice. No
    jobs are moved from a paused BullMQ queue; a queue with schedulers is refused, and so are jobs of flows. A message
    that cannot be read becomes a dead letter of its queue. A move that is cancelled finishes its batch in the
    background.
    """
    if transport_of(source).address == transport_of(target).address and source.keys == target.keys:
        raise InvalidOption("target", "is the queue that the jobs come from", "give another queue")
    stop = asyncio.Event()
    moving = asyncio.create_task(
        _moved(_source_of(source), target_of(source, target), limit, stop), name="toril-move"
    )
    moving.add_done_callback(succeeded)  # marks its error as seen
    try:
        return await result_of(moving)
    except asyncio.CancelledError:
        stop.set()  # after this batch: its jobs must not stay in both queues
        await asyncio.wait({moving}, timeout=GRACE_SECONDS)
        raise


async def _moved(
    source_queue: _Source, target_queue: Target, limit: int | None, stop: asyncio.Event
) -> Moved:
    try:
        await source_queue.open()
        waiting, new_waiting = await _move(source_queue.waiting(limit), source_queue, target_queue, stop)
        left = None if limit is None else limit - waiting
        scheduled, new_scheduled = await _move(source_queue.scheduled(left), source_queue, target_queue, stop)
        active = await source_queue.count_active()
    finally:
        await source_queue.close()
    return Moved(waiting, scheduled, waiting + scheduled - new_waiting - new_scheduled, active)


async def _move(
    batches: AsyncGenerator[list[TransferJob], None],
    source_queue: _Source,
    target_queue: Target,
    stop: asyncio.Event,
) -> tuple[int, int]:
    moved = new = 0
    async with contextlib.aclosing(batches):
        while not stop.is_set() and (batch := await anext(batches, None)) is not None:
            try:
                new += await target_queue.add_new(batch)
            except BaseException:
                with contextlib.suppress(TorilError):  # the lock expires by itself, only later
                    await source_queue.release(batch)
                raise
            await source_queue.remove(batch)
            moved += len(batch)
    return moved, new


class _Source(Protocol):
    """The queue from which jobs are moved."""

    async def open(self) -> None: ...
    def waiting(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]: ...
    def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]: ...
    async def remove(self, transfer_jobs: Sequence[TransferJob]) -> None: ...
    async def release(self, transfer_jobs: Sequence[TransferJob]) -> None: ...
    async def count_active(self) -> int: ...
    async def close(self) -> None: ...


def _source_of(queue: AnyQueue) -> _Source:
    return _BullmqSource(queue) if isinstance(queue, Queue) else _EnvelopeSource(queue)


def _batch_size(limit: int | None, taken: int) -> int:
    return BATCH if limit is None else min(BATCH, limit - taken)


class _FetchingSource:
    """Fetches waiting jobs through a backend, as a worker does."""

    backend: Backend[Any]
    _renewer_transport: BlockingTransport

    async def open(self) -> None:
        await self.backend.open()
        await self.backend.sweep()

    async def close(self) -> None:
        await self.backend.close()
        self._renewer_transport.close()

    async def waiting(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken = 0
        while size := _batch_size(limit, taken):
            fetched = await settle_and_fetch(self.backend, [], size)
            if transfer_jobs := await self._transfer_jobs(fetched.deliveries):
                taken += len(transfer_jobs)
                yield transfer_jobs
            if fetched.refused is not None:
                raise fetched.refused
            if fetched.exhausted and len(fetched.deliveries) < size:
                return

    async def _transfer_jobs(self, deliveries: Sequence[object]) -> list[TransferJob]:
        raise NotImplementedError

    async def release(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Requeued("the move failed"))

    async def _settle(self, transfer_jobs: Sequence[TransferJob], outcome: Outcome) -> None:
        settled = [FinishedJob(one.delivery, outcome) for one in transfer_jobs if one.delivery is not None]
        for ack_error in (await settle_and_fetch(self.backend, settled, 0)).ack_errors if settled else ():
            if ack_error is not None:
                raise ack_error


class _EnvelopeSource(_FetchingSource):
    """A list (with reliable pickup, so that nothing is lost) or a stream."""

    def __init__(self, queue: ListQueue | StreamQueue) -> None:
        self._queue = queue
        self._calls = Calls(queue.keys, at_once=BATCH)
        self._transport = transport_of(queue)
        self._renewer_transport = BlockingTransport(self._transport.address, policy=self._transport.policy)
        transport = AsyncTransport(self._transport.address, policy=self._transport.policy)
        name = f"bridge-{uuid.uuid4().hex[:8]}"
        if isinstance(queue.keys, ListKeys):
            list_terms = ListConfig(worker_id=name, consumer=name, reliable=True, lock_ms=LOCK_MS)
            self.backend = ListBackend(queue.keys, transport, self._renewer_transport, list_terms)
        else:
            # One consumer name for all moves: a second run finds the entries that the first one had fetched.
            terms = StreamConfig(
                worker_id=name, consumer="bridge", concurrency=BATCH, own_idle_ms=LOCK_MS, keep=None
            )
            self.backend = StreamBackend(queue.keys, transport, self._renewer_transport, terms)

    async def _transfer_jobs(self, deliveries: Sequence[object]) -> list[TransferJob]:
        transfer_jobs, unwritable = list[TransferJob](), list[FinishedJob[Any]]()
        for one in deliveries:
            try:
                transfer_jobs.append(self._transfer_job(one))
            except NotSerializable as error:  # it cannot be encoded again: it becomes a dead letter
                unwritable.append(FinishedJob(one, Failed(str(error), error=error)))
        if unwritable:
            await settle_and_fetch(self.backend, unwritable, 0)
        return transfer_jobs

    def _transfer_job(self, delivery: Any) -> TransferJob:
        envelope = dataclasses.replace(delivery.envelope, attempts=delivery.attempts_made)
        return TransferJob(envelope, transfer_id_of(envelope), None, delivery)

    async def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken, unreadable = 0, list[bytes]()
        while size := _batch_size(limit, taken):
            start = len(unreadable)
            rows = await self._transport.run(envelopes.scheduled(self._queue.keys, start, start + size - 1))
            if not rows:
                break
            batch = []
            for text, due in rows:
                try:
                    envelope = Envelope.from_bytes(text)
                    batch.append(TransferJob(envelope, transfer_id_of(envelope), due, text=text))
                except (MalformedValue, NotSerializable):
                    unreadable.append(text)
            taken += len(batch)
            if batch:
                yield batch
        if unreadable:
            await self._make_dead_letters(unreadable)

    async def _make_dead_letters(self, unreadable: Sequence[bytes]) -> None:
        """Makes unreadable messages due: when they are fetched, they become dead letters."""
        for start in range(0, len(unreadable), BATCH):
            part = unreadable[start : start + BATCH]
            # Due since 1970: the clock of the connection that fetches them may be a little behind.
            await self._transport.run(envelopes.make_due(self._queue.keys, part, 0))
        async for batch in self.waiting(None):
            await self.release(batch)
            break

    async def remove(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Completed())
        keys, calls = self._queue.keys, self._calls
        gone = [envelopes.unschedule(keys, one.text, calls) for one in transfer_jobs if one.text]
        for result in await self._transport.run_many(gone):
            if isinstance(result, TorilError):
                raise result

    async def count_active(self) -> int:
        counts = await self._queue.counts()
        return counts.active


class _BullmqSource(_FetchingSource):
    """A BullMQ queue: jobs are fetched under a lock and completed."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._transport = transport_of(queue)
        self._renewer_transport = BlockingTransport(self._transport.address, policy=self._transport.policy)
        terms = BullmqConfig(
            worker_id=f"bridge-{uuid.uuid4().hex[:8]}",
            lock_ms=LOCK_MS,
            stalled_ms=LOCK_MS,
            max_stalled=1_000_000,  # a job that is not run cannot be the reason for a crash
            heartbeat=LOCK_MS / 2000,
            keep_completed={"count": 0},
        )
        transport = AsyncTransport(self._transport.address, policy=self._transport.policy)
        self.backend = BullmqBackend(queue.keys, transport, self._renewer_transport, terms)

    async def open(self) -> None:
        if await self._transport.run(bridge.count_schedulers(self._queue.keys)):
            problem = "has schedulers, which would add no more jobs"
            raise InvalidOption("source", problem, "remove them, and create them at the other queue")
        await super().open()

    async def _transfer_jobs(self, deliveries: Sequence[Any]) -> list[TransferJob]:
        transfer_jobs = [self._transfer_job(one.record, None, one) for one in deliveries]
        try:
            await self._refuse_flow_jobs([one.record for one in deliveries])
        except InvalidOption:
            await self.release(transfer_jobs)
            raise
        return transfer_jobs

    def _transfer_job(self, record: JobRecord, due_ms: int | None, delivery: object = None) -> TransferJob:
        envelope = envelope_of(record, self._queue.keys)
        return TransferJob(envelope, transfer_id_of(envelope, str(record.timestamp_ms)), due_ms, delivery)

    async def _refuse_flow_jobs(self, records: Sequence[JobRecord]) -> None:
        """Raises for jobs of flows: for its parent a moved job would be completed, and other kinds have no flows."""
        has_children = await self._transport.run_many(
            [bridge.has_children(self._queue.keys, one.id) for one in records]
        )
        for record, result in zip(records, has_children, strict=True):
            if isinstance(result, TorilError):
                raise result
            if result or record.parent_key:
                problem = f"holds job {record.id}, which belongs to a flow"
                raise InvalidOption(
                    "source", problem, "let the flow end first; other kinds of queue have none"
                )

    async def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken = 0
        while size := _batch_size(limit, taken):
            records = [job.record for job in await self._queue.get_delayed(0, size - 1)]
            if not records:
                return
            await self._refuse_flow_jobs(records)
            dues = await self._transport.run_many(
                [bridge.delayed_until(self._queue.keys, one.id) for one in records]
            )
            taken += len(records)
            yield [
                self._transfer_job(record, due)
                for record, due in zip(records, dues, strict=True)
                if isinstance(due, int)  # the others were promoted or removed meanwhile
            ]

    async def remove(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Completed(to_json({"moved": True})))
        for one in transfer_jobs:
            if one.due_ms is not None:
                job = await self._queue.get_job(one.envelope.job_id)
                if job is not None:
                    await job.remove()

    async def count_active(self) -> int:
        return (await self._queue.get_job_counts()).active
