"""Moving jobs from one queue to another, of whatever kind: for people who migrate.

Guarantee: nothing is lost and nothing is doubled. A job is taken as a worker would take it, arrives at the other queue
under a book of arrivals, and only then leaves the first one. Whoever dies half-way leaves jobs that are taken again and
recognised on arrival. Attempts, times and unknown fields travel along.

    list, stream → BullMQ   payload becomes data (its `_meta` the envelope's meta), attempts left become attempts
    BullMQ → list, stream   data becomes the payload, options that only BullMQ knows become the envelope's `opts`
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from toril.commands import add, envelopes, moving
from toril.commands._command import Command
from toril.commands.envelopes import EnvelopeToAdd
from toril.contract.codec import to_json
from toril.contract.duration import ms_to_datetime
from toril.contract.envelope import Envelope, Meta, utc_text
from toril.contract.errors import InvalidOption, MalformedValue, TorilError
from toril.contract.keys import ListKeys, QueueKeys, check_job_id
from toril.contract.outcome import Completed
from toril.contract.record import JobRecord
from toril.producer.list_queue import ListQueue
from toril.producer.queue import Queue
from toril.producer.stream_queue import StreamQueue
from toril.queues.bullmq import BullmqSource, BullmqTerms
from toril.queues.redis_list import ListSource, ListTerms
from toril.queues.redis_stream import StreamSource, StreamTerms
from toril.queues.source import Settled
from toril.store import AsyncStore, BlockingStore

AnyQueue: TypeAlias = "Queue[Any] | ListQueue | StreamQueue"

# How long an arrival is remembered: a move that died must be run again within this time.
BOOK_MS = 24 * 3_600_000
# Jobs on the way at once. Each batch is over long before a lock of this length ends.
BATCH = 100
LOCK_MS = 60_000
_OWN_OPTIONS = ("attempts", "delay", "timestamp", "jobId")  # these travel as fields of the envelope


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did."""

    waiting: int  # jobs that were ready to run
    scheduled: int  # jobs that wait for their time, and still do
    known: int  # of both: those that had arrived before


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A job on its way."""

    envelope: Envelope
    due_ms: int | None = None
    delivery: Any = None


async def move_jobs(source: AnyQueue, target: AnyQueue, *, limit: int | None = None) -> Moved:
    """Moves the waiting and the scheduled jobs of one queue to another; those that workers have in hand stay.

    Run it again after a crash: what was on the way is taken again after a minute, and is recognised on arrival. A
    paused BullMQ queue gives nothing; one with schedulers is refused.
    """
    if store_of(source).address == store_of(target).address and source.keys == target.keys:
        raise InvalidOption("target", "is the queue that the jobs come from", "give another queue")
    arrival = _arrival(source, target)
    departure = _departure(source)
    await departure.open()
    try:
        waiting, new_waiting = await _move(departure.waiting(limit), departure, arrival)
        left = None if limit is None else limit - waiting
        scheduled, new_scheduled = await _move(departure.scheduled(left), departure, arrival)
    finally:
        await departure.close()
    return Moved(waiting, scheduled, waiting + scheduled - new_waiting - new_scheduled)


async def _move(
    batches: AsyncIterator[list[_Parcel]], departure: _Departure, arrival: _Arrival
) -> tuple[int, int]:
    moved = new = 0
    async for batch in batches:
        new += await arrival.take_in(batch)
        await departure.let_go(batch)
        moved += len(batch)
    return moved, new


class _Departure(Protocol):
    """The queue that jobs leave."""

    async def open(self) -> None: ...
    def waiting(self, limit: int | None) -> AsyncIterator[list[_Parcel]]: ...
    def scheduled(self, limit: int | None) -> AsyncIterator[list[_Parcel]]: ...
    async def let_go(self, parcels: Sequence[_Parcel]) -> None: ...
    async def close(self) -> None: ...


class _Arrival(Protocol):
    """The queue that jobs come to."""

    async def take_in(self, parcels: Sequence[_Parcel]) -> int:
        """Adds those that are new; how many."""


def _departure(queue: AnyQueue) -> _Departure:
    return _BullmqDeparture(queue) if isinstance(queue, Queue) else _EnvelopeDeparture(queue)


def _arrival(source: AnyQueue, target: AnyQueue) -> _Arrival:
    origin = source.keys.base.rstrip(":")
    if isinstance(target, Queue):
        return _BullmqArrival(target, origin)
    return _EnvelopeArrival(target, origin)


def store_of(queue: AnyQueue) -> AsyncStore:
    """The connection of a queue: a bridge speaks for it."""
    return queue._store  # noqa: SLF001  # not for applications, hence without a public name


def _rooms(limit: int | None, taken: int) -> int:
    return BATCH if limit is None else min(BATCH, limit - taken)


class _Taking:
    """Takes waiting jobs through a source, as a worker does."""

    source: BullmqSource | ListSource | StreamSource

    async def open(self) -> None:
        await self.source.open()
        await self.source.sweep()

    async def close(self) -> None:
        await self.source.close()
        self._keeper.close()

    _keeper: BlockingStore

    async def waiting(self, limit: int | None) -> AsyncIterator[list[_Parcel]]:
        taken = 0
        while room := _rooms(limit, taken):
            harvest = await self.source.exchange([], room)
            if harvest.refused is not None:
                raise harvest.refused
            if harvest.deliveries:
                taken += len(harvest.deliveries)
                yield [_Parcel(self._envelope(one), None, one) for one in harvest.deliveries]
            elif harvest.exhausted:
                return

    def _envelope(self, delivery: Any) -> Envelope:
        raise NotImplementedError

    async def _settle(self, parcels: Sequence[_Parcel], value: bytes | None) -> None:
        settled = [Settled(one.delivery, Completed(value)) for one in parcels if one.delivery is not None]
        for verdict in (await self.source.exchange(settled, 0)).verdicts if settled else ():
            if verdict is not None:
                raise verdict


class _EnvelopeDeparture(_Taking):
    """A list (with reliable pickup, so that nothing is lost on the way) or a stream."""

    def __init__(self, queue: ListQueue | StreamQueue) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._keeper = BlockingStore(self._store.address)
        store, name = AsyncStore(self._store.address), f"bridge-{uuid.uuid4().hex[:8]}"
        if isinstance(queue.keys, ListKeys):
            list_terms = ListTerms(worker_id=name, consumer=name, reliable=True, lock_ms=LOCK_MS)
            self.source = ListSource(queue.keys, store, self._keeper, list_terms)
        else:
            # One name for all bridges of a stream: a second run finds what the first one had in hand.
            terms = StreamTerms(
                worker_id=name, consumer="bridge", concurrency=BATCH, own_idle_ms=LOCK_MS, keep=None
            )
            self.source = StreamSource(queue.keys, store, self._keeper, terms)

    def _envelope(self, delivery: Any) -> Envelope:
        envelope: Envelope = delivery.envelope
        return dataclasses.replace(envelope, attempts=delivery.attempts_made)

    async def scheduled(self, limit: int | None) -> AsyncIterator[list[_Parcel]]:
        taken = 0
        while room := _rooms(limit, taken):
            rows = await self._store.run(envelopes.scheduled(self._queue.keys, 0, room - 1))
            if not rows:
                return
            taken += len(rows)
            yield [_Parcel(_readable(text), due, None) for text, due in rows]

    async def let_go(self, parcels: Sequence[_Parcel]) -> None:
        await self._settle(parcels, None)
        gone = [
            envelopes.unschedule(self._queue.keys, one.envelope.to_bytes())
            for one in parcels
            if one.due_ms is not None
        ]
        for answer in await self._store.run_many(gone):
            if isinstance(answer, TorilError):
                raise answer


def _readable(text: bytes) -> Envelope:
    try:
        envelope = Envelope.from_bytes(text)
    except MalformedValue as error:
        raise InvalidOption(
            "source", f"holds a scheduled job that cannot be read: {error}", "remove it"
        ) from error
    if envelope.to_bytes() != text:
        problem = "holds a scheduled job that is not in canonical form"
        raise InvalidOption("source", problem, "let a worker take it, or remove it")
    return envelope


class _BullmqDeparture(_Taking):
    """A BullMQ queue: jobs are taken under a lock and complete with a note of where they went."""

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._keeper = BlockingStore(self._store.address)
        terms = BullmqTerms(
            worker_id=f"bridge-{uuid.uuid4().hex[:8]}",
            lock_ms=LOCK_MS,
            stalled_ms=LOCK_MS,
            max_stalled=1_000_000,  # a job that is only carried cannot be to blame for a dead bridge
            heartbeat=LOCK_MS / 2000,
            keep_completed={"count": 0},
        )
        self.source = BullmqSource(queue.keys, AsyncStore(self._store.address), self._keeper, terms)

    async def open(self) -> None:
        if await self._store.run(moving.count_schedulers(self._queue.keys)):
            problem = "has schedulers, whose chains would end"
            raise InvalidOption("source", problem, "remove them, and create them at the other queue")
        await super().open()

    def _envelope(self, delivery: Any) -> Envelope:
        return envelope_of(delivery.record, self._queue.keys)

    async def scheduled(self, limit: int | None) -> AsyncIterator[list[_Parcel]]:
        taken = 0
        while room := _rooms(limit, taken):
            jobs = await self._queue.get_delayed(0, room - 1)
            if not jobs:
                return
            taken += len(jobs)
            yield [
                _Parcel(envelope_of(one.record, self._queue.keys), _due_of(one.record), None) for one in jobs
            ]

    async def let_go(self, parcels: Sequence[_Parcel]) -> None:
        await self._settle(parcels, to_json({"moved": True}))
        for one in parcels:
            if one.due_ms is not None:
                job = await self._queue.get_job(one.envelope.job_id)
                if job is not None:
                    await job.remove()


def _due_of(record: JobRecord) -> int:
    return record.timestamp_ms + record.delay_ms


def envelope_of(record: JobRecord, keys: QueueKeys) -> Envelope:
    """A BullMQ job as an envelope."""
    data = record.data
    payload = dict(data) if isinstance(data, Mapping) else {"data": data}
    meta = _meta_in(payload)
    options = {name: value for name, value in record.opts.items() if name not in _OWN_OPTIONS}
    return Envelope(
        job_id=record.id,
        task_type=record.name,
        payload=payload,
        attempts=record.attempts_made,
        max_attempts=max(1, record.max_attempts),
        meta=meta or _new_meta(record, keys),
        extra={"opts": options} if options else {},
    )


def _meta_in(payload: dict[str, Any]) -> Meta | None:
    """The meta that a bridge put into the data, taken out of it; what else has that name stays."""
    known = payload.get("_meta")
    if not isinstance(known, Mapping):
        return None
    fields = dict(known)
    try:
        meta = Meta(
            correlation_id=fields.pop("correlation_id"),
            user_id=fields.pop("user_id", None),
            enqueue_ts=fields.pop("enqueue_ts"),
            source=fields.pop("source"),
            extra=fields,
        )
    except (KeyError, InvalidOption):
        return None
    del payload["_meta"]
    return meta


def _new_meta(record: JobRecord, keys: QueueKeys) -> Meta:
    return Meta(
        correlation_id=str(uuid.uuid4()),
        enqueue_ts=utc_text(ms_to_datetime(record.timestamp_ms)),
        source=f"bullmq:{keys.name}"[:255],
    )


class _EnvelopeArrival:
    """A list or a stream: the book of arrivals and the jobs are written in one call."""

    def __init__(self, queue: ListQueue | StreamQueue, origin: str) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._origin = origin

    async def take_in(self, parcels: Sequence[_Parcel]) -> int:
        jobs = [
            (f"{self._origin} {one.envelope.job_id}", EnvelopeToAdd(one.envelope.to_bytes(), one.due_ms))
            for one in parcels
        ]
        now_ms = await self._store.now_ms()
        return await self._store.run(moving.take_in(self._queue.keys, jobs, now_ms=now_ms, forget_ms=BOOK_MS))


class _BullmqArrival:
    """A BullMQ queue: each job is added under a ledger entry of its own."""

    def __init__(self, queue: Queue[Any], origin: str) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._origin = origin

    async def take_in(self, parcels: Sequence[_Parcel]) -> int:
        await self._queue.open()
        now_ms = await self._store.now_ms()
        before = await self._store.run_many([self._is_known(one) for one in parcels])
        answers = await self._store.run_many([self._add(one, now_ms) for one in parcels])
        for answer in (*before, *(each if isinstance(each, TorilError) else each[0] for each in answers)):
            if isinstance(answer, TorilError):
                raise answer
        return sum(not known for known in before)

    def _ledger(self, parcel: _Parcel) -> add.Ledger:
        return add.Ledger(self._queue.keys.toril(f"arrival:{self._origin} {parcel.envelope.job_id}"), "1")

    def _is_known(self, parcel: _Parcel) -> Command[bool]:
        return moving.is_known(self._ledger(parcel).key)

    def _add(self, parcel: _Parcel, now_ms: int) -> Command[Any]:
        envelope = parcel.envelope
        data = to_json({**envelope.payload, "_meta": envelope.meta.as_dict()})
        job = add.JobToAdd(
            name=envelope.task_type,
            data=data,
            options=_options_of(envelope, parcel.due_ms, now_ms),
            timestamp=now_ms,
            id=_job_id(envelope.job_id),
        )
        call = add.add_jobs(self._queue.keys, [job], self._ledger(parcel))
        # The second word is the ledger's life: a move may be repeated much later than a call.
        return dataclasses.replace(call, words=(call.words[0], BOOK_MS, *call.words[2:]))


def _options_of(envelope: Envelope, due_ms: int | None, now_ms: int) -> dict[str, Any]:
    """BullMQ's options: those the job had there once, and what the envelope says."""
    kept = envelope.extra.get("opts")
    options = dict(kept) if isinstance(kept, Mapping) else {}
    options["attempts"] = max(1, envelope.max_attempts - envelope.attempts)
    options.setdefault("backoff", {"type": "exponential", "delay": 1000, "maxDelay": 300_000})
    if due_ms is not None and due_ms > now_ms:
        options["delay"] = due_ms - now_ms
    return options


def _job_id(job_id: str) -> str:
    """The same id, or one that BullMQ can take."""
    try:
        return check_job_id(job_id)
    except InvalidOption:
        return f"moved-{job_id.replace(':', '-')}"[:255]
