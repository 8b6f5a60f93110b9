"""Moving jobs from one queue to another, of whatever kind: for people who migrate.

Guarantee: nothing is lost and nothing is doubled. A job is taken as a worker would take it, arrives at the other queue
under a book of arrivals, and only then leaves the first one. Whoever dies half-way leaves jobs that are taken again and
recognised on arrival. Attempts, times and unknown fields travel along (`_transfer_jobs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from toril.backends.base import FinishedJob
from toril.backends.bullmq import BullmqBackend, BullmqConfig
from toril.backends.redis_list import ListBackend, ListConfig
from toril.backends.redis_stream import StreamBackend, StreamConfig
from toril.commands import add, bridge, envelopes
from toril.commands.command import Command
from toril.commands.envelopes import EnvelopeToAdd
from toril.commands.once import Calls
from toril.errors import InvalidOption, MalformedValue, NotSerializable, TorilError
from toril.producer._job_conversion import (
    TransferJob,
    as_moved,
    data_of,
    envelope_of,
    job_id_of,
    mark_of,
    options_of,
)
from toril.producer.list_queue import ListQueue
from toril.producer.queue import Queue
from toril.producer.stream_queue import StreamQueue
from toril.protocol.codec import to_json
from toril.protocol.envelope import Envelope
from toril.protocol.keys import ListKeys
from toril.protocol.outcome import Completed, Failed, Outcome, Requeued
from toril.transport import AsyncTransport, BlockingTransport
from toril.transport.waiting import GRACE_SECONDS, result_of, succeeded

AnyQueue: TypeAlias = "Queue[Any] | ListQueue | StreamQueue"

# How long an arrival is remembered: a move that died must be run again within this time.
BOOK_MS = 24 * 3_600_000
# Jobs on the way at once. Each batch is over long before a lock of this length ends.
BATCH = 100
LOCK_MS = 60_000


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did."""

    waiting: int  # jobs that were ready to run
    scheduled: int  # jobs that wait for their time, and still do
    known: int  # of both: those that had arrived before
    in_hand: int = (
        0  # jobs that stayed: workers have them, or a move that died; run it again when they are done
    )


async def move_jobs(source: AnyQueue, target: AnyQueue, *, limit: int | None = None) -> Moved:
    """Moves the waiting and the scheduled jobs of one queue to another; those that workers have in hand stay.

    Run it again after a crash: what was on the way is taken again after a minute, and is recognised on arrival. A
    paused BullMQ queue gives nothing; one with schedulers is refused, and so are jobs of flows. What cannot be read
    becomes a dead letter of the queue that it was in. A move that is cancelled finishes the jobs that are on the way,
    without its caller.
    """
    if transport_of(source).address == transport_of(target).address and source.keys == target.keys:
        raise InvalidOption("target", "is the queue that the jobs come from", "give another queue")
    stop = asyncio.Event()
    moving_jobs = asyncio.create_task(
        _moved(_departure(source), _arrival(source, target), limit, stop), name="toril-move"
    )
    moving_jobs.add_done_callback(succeeded)  # looks at its error, for the case that nobody else does
    try:
        return await result_of(moving_jobs)
    except asyncio.CancelledError:
        stop.set()  # after the jobs that are on the way: they must not be in both queues, nor in none
        await asyncio.wait({moving_jobs}, timeout=GRACE_SECONDS)
        raise


async def _moved(departure: _Departure, arrival: _Arrival, limit: int | None, stop: asyncio.Event) -> Moved:
    try:
        await departure.open()
        waiting, new_waiting = await _move(departure.waiting(limit), departure, arrival, stop)
        left = None if limit is None else limit - waiting
        scheduled, new_scheduled = await _move(departure.scheduled(left), departure, arrival, stop)
        in_hand = await departure.in_hand()
    finally:
        await departure.close()
    return Moved(waiting, scheduled, waiting + scheduled - new_waiting - new_scheduled, in_hand)


async def _move(
    batches: AsyncGenerator[list[TransferJob], None],
    departure: _Departure,
    arrival: _Arrival,
    stop: asyncio.Event,
) -> tuple[int, int]:
    moved = new = 0
    async with contextlib.aclosing(batches):
        while not stop.is_set() and (batch := await anext(batches, None)) is not None:
            try:
                new += await arrival.take_in(batch)
            except BaseException:
                with contextlib.suppress(TorilError):  # a lock ends by itself, only later
                    await departure.give_back(batch)
                raise
            await departure.let_go(batch)
            moved += len(batch)
    return moved, new


class _Departure(Protocol):
    """The queue that jobs leave."""

    async def open(self) -> None: ...
    def waiting(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]: ...
    def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]: ...
    async def let_go(self, transfer_jobs: Sequence[TransferJob]) -> None: ...
    async def give_back(self, transfer_jobs: Sequence[TransferJob]) -> None: ...
    async def in_hand(self) -> int: ...
    async def close(self) -> None: ...


class _Arrival(Protocol):
    """The queue that jobs come to."""

    async def take_in(self, transfer_jobs: Sequence[TransferJob]) -> int:
        """Adds those that are new; how many."""


def _departure(queue: AnyQueue) -> _Departure:
    return _BullmqDeparture(queue) if isinstance(queue, Queue) else _EnvelopeDeparture(queue)


def _arrival(source: AnyQueue, target: AnyQueue) -> _Arrival:
    origin = source.keys.base.rstrip(":")
    if isinstance(target, Queue):
        return _BullmqArrival(target, origin)
    return _EnvelopeArrival(target, origin)


def transport_of(queue: AnyQueue) -> AsyncTransport:
    """The connection of a queue: a bridge speaks for it."""
    return queue._transport  # noqa: SLF001  # not for applications, hence without a public name


def _capacities_of_kinds(limit: int | None, taken: int) -> int:
    return BATCH if limit is None else min(BATCH, limit - taken)


class _Taking:
    """Takes waiting jobs through a source, as a worker does."""

    source: BullmqBackend | ListBackend | StreamBackend
    _keeper: BlockingTransport

    async def open(self) -> None:
        await self.source.open()
        await self.source.sweep()

    async def close(self) -> None:
        await self.source.close()
        self._keeper.close()

    async def waiting(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken = 0
        while room := _capacities_of_kinds(limit, taken):
            harvest = await self.source.exchange([], room)
            if transfer_jobs := await self._transfer_jobs(harvest.deliveries):
                taken += len(transfer_jobs)
                yield transfer_jobs
            if harvest.refused is not None:
                raise harvest.refused
            if harvest.exhausted and len(harvest.deliveries) < room:
                return

    async def _transfer_jobs(self, deliveries: Sequence[Any]) -> list[TransferJob]:
        raise NotImplementedError

    async def give_back(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Requeued("the move failed"))

    async def _settle(self, transfer_jobs: Sequence[TransferJob], outcome: Outcome) -> None:
        settled = [FinishedJob(one.delivery, outcome) for one in transfer_jobs if one.delivery is not None]
        for ack_error in (await self.source.exchange(settled, 0)).ack_errors if settled else ():
            if ack_error is not None:
                raise ack_error


class _EnvelopeDeparture(_Taking):
    """A list (with reliable pickup, so that nothing is lost on the way) or a stream."""

    def __init__(self, queue: ListQueue | StreamQueue) -> None:
        self._queue = queue
        self._calls = Calls(queue.keys, at_once=BATCH)
        self._transport = transport_of(queue)
        self._keeper = BlockingTransport(self._transport.address, policy=self._transport.policy)
        transport = AsyncTransport(self._transport.address, policy=self._transport.policy)
        name = f"bridge-{uuid.uuid4().hex[:8]}"
        if isinstance(queue.keys, ListKeys):
            list_terms = ListConfig(worker_id=name, consumer=name, reliable=True, lock_ms=LOCK_MS)
            self.source = ListBackend(queue.keys, transport, self._keeper, list_terms)
        else:
            # One name for all bridges of a stream: a second run finds what the first one had in hand.
            terms = StreamConfig(
                worker_id=name, consumer="bridge", concurrency=BATCH, own_idle_ms=LOCK_MS, keep=None
            )
            self.source = StreamBackend(queue.keys, transport, self._keeper, terms)

    async def _transfer_jobs(self, deliveries: Sequence[Any]) -> list[TransferJob]:
        transfer_jobs, odd = list[TransferJob](), list[FinishedJob]()
        for one in deliveries:
            try:
                transfer_jobs.append(self._transfer_job(one))
            except NotSerializable as error:  # it can be read, but not be written again: it is buried here
                odd.append(FinishedJob(one, Failed(str(error), error=error)))
        if odd:
            await self.source.exchange(odd, 0)
        return transfer_jobs

    def _transfer_job(self, delivery: Any) -> TransferJob:
        envelope = dataclasses.replace(delivery.envelope, attempts=delivery.attempts_made)
        return TransferJob(envelope, mark_of(envelope), None, delivery)

    async def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken, unreadable = 0, list[bytes]()
        while room := _capacities_of_kinds(limit, taken):
            start = len(unreadable)
            rows = await self._transport.run(envelopes.scheduled(self._queue.keys, start, start + room - 1))
            if not rows:
                break
            batch = []
            for text, due in rows:
                try:
                    envelope = Envelope.from_bytes(text)
                    batch.append(TransferJob(envelope, mark_of(envelope), due, text=text))
                except (MalformedValue, NotSerializable):
                    unreadable.append(text)
            taken += len(batch)
            if batch:
                yield batch
        if unreadable:
            await self._bury(unreadable)

    async def _bury(self, unreadable: Sequence[bytes]) -> None:
        """Makes messages due that nobody can read: taken like others, they become dead letters."""
        for start in range(0, len(unreadable), BATCH):
            part = unreadable[start : start + BATCH]
            # Due since ever: the connection that takes them may think that it is a little earlier.
            await self._transport.run(envelopes.make_due(self._queue.keys, part, 0))
        async for batch in self.waiting(None):
            await self.give_back(batch)
            break

    async def let_go(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Completed())
        keys, calls = self._queue.keys, self._calls
        gone = [envelopes.unschedule(keys, one.text, calls) for one in transfer_jobs if one.text]
        for answer in await self._transport.run_many(gone):
            if isinstance(answer, TorilError):
                raise answer

    async def in_hand(self) -> int:
        counts = await self._queue.counts()
        return counts.active


class _BullmqDeparture(_Taking):
    """A BullMQ queue: jobs are taken under a lock and complete with a note of where they went."""

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue
        self._transport = transport_of(queue)
        self._keeper = BlockingTransport(self._transport.address, policy=self._transport.policy)
        terms = BullmqConfig(
            worker_id=f"bridge-{uuid.uuid4().hex[:8]}",
            lock_ms=LOCK_MS,
            stalled_ms=LOCK_MS,
            max_stalled=1_000_000,  # a job that is only carried cannot be to blame for a dead bridge
            heartbeat=LOCK_MS / 2000,
            keep_completed={"count": 0},
        )
        transport = AsyncTransport(self._transport.address, policy=self._transport.policy)
        self.source = BullmqBackend(queue.keys, transport, self._keeper, terms)

    async def open(self) -> None:
        if await self._transport.run(bridge.count_schedulers(self._queue.keys)):
            problem = "has schedulers, whose chains would end"
            raise InvalidOption("source", problem, "remove them, and create them at the other queue")
        await super().open()

    async def _transfer_jobs(self, deliveries: Sequence[Any]) -> list[TransferJob]:
        transfer_jobs = [self._transfer_job(one.record, None, one) for one in deliveries]
        try:
            await self._refuse_families([one.record for one in deliveries])
        except InvalidOption:
            await self.give_back(transfer_jobs)
            raise
        return transfer_jobs

    def _transfer_job(self, record: Any, due_ms: int | None, delivery: Any = None) -> TransferJob:
        envelope = envelope_of(record, self._queue.keys)
        return TransferJob(envelope, mark_of(envelope, str(record.timestamp_ms)), due_ms, delivery)

    async def _refuse_families(self, records: Sequence[Any]) -> None:
        """A parent would take a job that was moved for a job that is done; and children know no other kind of queue."""
        has_children = await self._transport.run_many(
            [bridge.has_children(self._queue.keys, one.id) for one in records]
        )
        for record, answer in zip(records, has_children, strict=True):
            if isinstance(answer, TorilError):
                raise answer
            if answer or record.parent_key:
                problem = f"holds job {record.id}, which belongs to a flow"
                raise InvalidOption(
                    "source", problem, "let the flow end first; other kinds of queue have none"
                )

    async def scheduled(self, limit: int | None) -> AsyncGenerator[list[TransferJob], None]:
        taken = 0
        while room := _capacities_of_kinds(limit, taken):
            records = [job.record for job in await self._queue.get_delayed(0, room - 1)]
            if not records:
                return
            await self._refuse_families(records)
            dues = await self._transport.run_many(
                [bridge.delayed_until(self._queue.keys, one.id) for one in records]
            )
            taken += len(records)
            yield [
                self._transfer_job(record, due)
                for record, due in zip(records, dues, strict=True)
                if isinstance(due, int)  # others were promoted or removed meanwhile
            ]

    async def let_go(self, transfer_jobs: Sequence[TransferJob]) -> None:
        await self._settle(transfer_jobs, Completed(to_json({"moved": True})))
        for one in transfer_jobs:
            if one.due_ms is not None:
                job = await self._queue.get_job(one.envelope.job_id)
                if job is not None:
                    await job.remove()

    async def in_hand(self) -> int:
        return (await self._queue.get_job_counts()).active


class _EnvelopeArrival:
    """A list or a stream: the book of arrivals and the jobs are written in one call."""

    def __init__(self, queue: ListQueue | StreamQueue, origin: str) -> None:
        self._queue = queue
        self._calls = Calls(queue.keys)
        self._transport = transport_of(queue)
        self._origin = origin

    async def take_in(self, transfer_jobs: Sequence[TransferJob]) -> int:
        jobs = [
            (f"{self._origin} {one.mark}", EnvelopeToAdd(as_moved(one.envelope).rewritten(), one.due_ms))
            for one in transfer_jobs
        ]
        now_ms = await self._transport.now_ms()
        command = bridge.import_jobs(
            self._queue.keys, jobs, now_ms=now_ms, forget_ms=BOOK_MS, calls=self._calls
        )
        return await self._transport.run(command)


class _BullmqArrival:
    """A BullMQ queue: each job is added under a ledger entry of its own."""

    def __init__(self, queue: Queue[Any], origin: str) -> None:
        self._queue = queue
        self._transport = transport_of(queue)
        self._origin = origin

    async def take_in(self, transfer_jobs: Sequence[TransferJob]) -> int:
        await self._queue.open()
        now_ms = await self._transport.now_ms()
        known = await self._ask([bridge.has_arrived(self._ledger(one).key) for one in transfer_jobs])
        ids = await self._free_ids(
            [one for one, was_here in zip(transfer_jobs, known, strict=True) if not was_here]
        )
        await self._ask([self._add(one, now_ms, ids.get(one.mark, "")) for one in transfer_jobs])
        return len(transfer_jobs) - sum(map(bool, known))

    async def _ask(self, calls: Sequence[Command[Any]]) -> list[Any]:
        answers = await self._transport.run_many(calls)
        for answer in answers:
            each = answer[0] if isinstance(answer, list) else answer
            if isinstance(each, TorilError):
                raise each
        return answers

    async def _free_ids(self, transfer_jobs: Sequence[TransferJob]) -> dict[str, str]:
        """An id for each mark: BullMQ takes a second job of the same id for the first one, and drops it."""
        exists = await self._ask(
            [bridge.has_arrived(self._queue.keys.job(job_id_of(one, taken=False))) for one in transfer_jobs]
        )
        ids: dict[str, str] = {}
        for transfer_job, taken in zip(transfer_jobs, exists, strict=True):
            again = job_id_of(transfer_job, taken=False) in ids.values()
            ids[transfer_job.mark] = job_id_of(transfer_job, taken=taken or again)
        return ids

    def _ledger(self, transfer_job: TransferJob) -> add.Ledger:
        return add.Ledger(self._queue.keys.toril(f"arrival:{self._origin} {transfer_job.mark}"), "1")

    def _add(self, transfer_job: TransferJob, now_ms: int, job_id: str) -> Command[Any]:
        envelope = as_moved(transfer_job.envelope)
        job = add.JobToAdd(
            name=envelope.task_type,
            data=data_of(envelope),
            options=options_of(envelope, transfer_job.due_ms, now_ms),
            timestamp=now_ms,
            id=job_id or envelope.job_id,  # one that is known is not added
        )
        call = add.add_jobs(self._queue.keys, [job], self._ledger(transfer_job))
        # The second word is the ledger's life: a move may be repeated much later than a call.
        return dataclasses.replace(call, args=(call.args[0], BOOK_MS, *call.args[2:]))
