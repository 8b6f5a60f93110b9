"""What list and stream queues share: adding, reading, and dead letters.

Guarantee: a job is checked before any I/O, and an `add` whose reply was lost is repeated without adding twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeAlias

from toril.backends.dead_letters import DeadLetterFilter, DeadLetters
from toril.backends.envelopes import read_envelope
from toril.codecs.in_loop import encoded_all
from toril.commands import envelopes, manage, read
from toril.commands.envelopes import EnvelopeKeys, EnvelopeToAdd
from toril.commands.once import Calls
from toril.errors import InvalidOption, JobNotFound, MalformedValue
from toril.protocol.codec import PayloadCodec, check_size, from_json, to_json
from toril.protocol.codecs import GivenCodecs, QueueCodecs
from toril.protocol.duration import Duration, datetime_to_ms, ms_to_datetime, to_ms, to_seconds
from toril.protocol.envelope import DEFAULT_MAX_ATTEMPTS, TRACE_FIELD, DeadLetter, Envelope
from toril.protocol.option_names import knows_its_names
from toril.telemetry.hooks import NO_METRICS, Adding, MetricsCollector, Tracer
from toril.transport import AsyncTransport

NewEnvelope: TypeAlias = Envelope | tuple[str, Mapping[str, object]] | str

# Envelopes in one call: about five milliseconds of the server's time.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeCounts:
    """How many jobs of a list or stream queue are in each state."""

    waiting: int  # no worker has fetched them
    active: int  # a worker has them; on a list, known for reliable pickup only
    scheduled: int  # they are due later: delayed, or before another attempt
    dead: int  # dead letters

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return self.waiting + self.active + self.scheduled


class EnvelopeQueue:
    """The base of `ListQueue` and `StreamQueue`."""

    keys: EnvelopeKeys

    def __init__(
        self,
        name: str,
        keys: EnvelopeKeys,
        transport: AsyncTransport,
        *,
        source: str,
        payload: type | Mapping[str, object] | None,
        codecs: GivenCodecs,
        metrics: MetricsCollector | None,
        tracer: Tracer | None,
    ) -> None:
        self.name = name
        self.keys = keys
        self._transport = transport
        self._source = source
        self._payload: PayloadCodec[Any] | None = None if payload is None else PayloadCodec(payload)
        self.codecs = QueueCodecs.of(codecs)
        self._metrics = metrics or NO_METRICS
        self._tracer = tracer
        self._producer = uuid.uuid4().hex
        self._calls = itertools.count(1)
        self._dead_letters = DeadLetters(keys, transport)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, key={envelopes.jobs_key(self.keys)!r})"

    # --- adding ---------------------------------------------------------------------------------------------

    @knows_its_names("an option of jobs in lists and streams")
    async def add(
        self,
        task_type: str | Envelope,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        job_id: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        correlation_id: str | None = None,
        user_id: str | None = None,
        source: str | None = None,
    ) -> Envelope:
        """Adds one job, to run now, after `delay`, or at `run_at`; returns the envelope as it was sent."""
        now_ms = await self._transport.now_ms()
        if isinstance(task_type, Envelope):
            envelope = task_type
        else:
            envelope = Envelope.new(
                task_type,
                payload,
                job_id=job_id,
                max_attempts=max_attempts,
                correlation_id=correlation_id,
                user_id=user_id,
                source=source or self._source,
                now=ms_to_datetime(now_ms),
            )
        due = _due(delay, run_at, now_ms)
        (sent,) = await self._add_all([envelope], due, "add")
        return sent

    @knows_its_names("an option of jobs in lists and streams")
    async def add_bulk(
        self,
        jobs: Iterable[NewEnvelope],
        *,
        delay: Duration | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> list[Envelope]:
        """Adds many jobs in order: `(task_type, payload)` pairs or envelopes. All are checked before one is sent."""
        now_ms = await self._transport.now_ms()
        now = ms_to_datetime(now_ms)
        envelopes_to_add = [self._envelope_of(one, max_attempts, now) for one in jobs]
        return await self._add_all(envelopes_to_add, _due(delay, None, now_ms), "addBulk")

    async def _add_all(
        self, envelopes_to_add: list[Envelope], due: int | None, operation: Adding
    ) -> list[Envelope]:
        if self._tracer is None:
            await self._send_all(envelopes_to_add, due)
            return envelopes_to_add
        with self._tracer.adding(
            self.name, [one.task_type for one in envelopes_to_add], operation=operation
        ) as span:
            envelopes_to_add = [_with_trace_context(one, span.carrier) for one in envelopes_to_add]
            await self._send_all(envelopes_to_add, due)
            span.added([one.job_id for one in envelopes_to_add])
            return envelopes_to_add

    async def _send_all(self, envelopes_to_add: Sequence[Envelope], due: int | None) -> None:
        if self._payload is not None:
            for envelope in envelopes_to_add:
                self._payload.decode(to_json(envelope.payload))
        sent = envelopes_to_add
        if self.codecs is not None:
            sent = await self._encoded(self.codecs, envelopes_to_add)
        texts = [EnvelopeToAdd(_text(one), due) for one in sent]
        for start in range(0, len(texts), BATCH):
            await self._send(texts[start : start + BATCH])

    def _envelope_of(self, job: NewEnvelope, max_attempts: int, now: datetime) -> Envelope:
        if isinstance(job, Envelope):
            return job
        pair: Any = (job, None) if isinstance(job, str) else job
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidOption(
                "jobs", f"holds a {type(job).__name__}", "give (task_type, payload) pairs or envelopes"
            )
        task_type, payload = pair
        return Envelope.new(task_type, payload, max_attempts=max_attempts, source=self._source, now=now)

    async def _encoded(self, codecs: QueueCodecs, plain: Sequence[Envelope]) -> list[Envelope]:
        texts = await encoded_all(
            codecs, [(one.task_type, to_json(one.payload, field="payload")) for one in plain]
        )
        return [
            dataclasses.replace(one, payload=from_json(text)) for one, text in zip(plain, texts, strict=True)
        ]

    async def _send(self, batch: Sequence[EnvelopeToAdd]) -> None:
        call = envelopes.add_envelopes(self.keys, batch, producer=self._producer, sequence=next(self._calls))
        await self._transport.run(call)
        self._metrics.increment_jobs_added(f"{envelopes.kind_of(self.keys)}:{self.name}", len(batch))

    # --- reading --------------------------------------------------------------------------------------------

    async def counts(self) -> EnvelopeCounts:
        """Returns how many jobs are in each state."""
        raise NotImplementedError

    async def pending(self) -> int:
        """Returns how many jobs have not ended: waiting, active or scheduled."""
        return (await self.counts()).pending

    async def totals(self) -> Mapping[str, int]:
        """Returns how many jobs ever completed, were retried, became dead letters, stalled, were replayed or purged."""
        return await self._transport.run(envelopes.totals(self.keys))

    async def scheduled(self, limit: int = 100) -> list[tuple[Envelope, datetime]]:
        """Returns the scheduled jobs and their times, soonest first; an unreadable message as an empty envelope."""
        rows = await self._transport.run(envelopes.scheduled(self.keys, 0, limit - 1))
        return [(read_envelope(text, "scheduled")[0], ms_to_datetime(due)) for text, due in rows]

    @knows_its_names("an argument of promote")
    async def promote(self, job_ids: Collection[str] | None = None, *, limit: int | None = None) -> int:
        """Makes scheduled jobs due now, all or those with these ids, soonest first; returns how many."""
        texts: list[bytes] = []
        now = await self._transport.now_ms()
        for start in itertools.count(0, BATCH):
            page = await self._transport.run(envelopes.scheduled(self.keys, start, start + BATCH - 1))
            waiting = (text for text, due in page if due > now)
            texts += (text for text in waiting if job_ids is None or _id_of(text) in job_ids)
            if len(page) < BATCH or (limit is not None and len(texts) >= limit):
                break
        calls, moved = Calls(self.keys), 0
        for start in range(0, len(texts[:limit]), BATCH):
            part = texts[:limit][start : start + BATCH]
            moved += await self._transport.run(envelopes.make_due(self.keys, part, now, calls))
        return moved

    async def drain(self, *, delayed: bool = False) -> int:
        """Removes all waiting jobs, with `delayed` also the scheduled ones; returns how many.

        Jobs that are added meanwhile stay. If it is interrupted, the other jobs wait as before.
        """
        raise NotImplementedError

    async def remove(self, job_id: str) -> bool:
        """Removes a scheduled job or a dead letter; returns False when there is none with this id."""
        calls, found = Calls(self.keys), False
        async for text in self._scheduled_with(job_id):
            found |= await self._transport.run(envelopes.unschedule(self.keys, text, calls))
        purged = await self.purge(lambda dead: job_id in (dead.job_id, dead.entry_id))
        return found or purged > 0

    async def _scheduled_with(self, job_id: str) -> AsyncIterator[bytes]:
        """Yields the scheduled jobs with an id; reads the schedule in pages."""
        for start in itertools.count(0, BATCH):
            page = await self._transport.run(envelopes.scheduled(self.keys, start, start + BATCH - 1))
            for text, _ in page:
                if _id_of(text) == job_id:
                    yield text
            if len(page) < BATCH:
                return

    async def result(self, job_id: str) -> Any:
        """Returns the result of a job while the queue keeps it; raises `JobNotFound` otherwise."""
        raw = await self._transport.run(envelopes.result(self.keys, job_id))
        if raw is None:
            hint = "it has not finished, its worker was made without keep_results, or the result has expired"
            raise JobNotFound(job_id, command="result", hint=hint)
        codecs = self.codecs
        if codecs is not None:
            raw = await asyncio.to_thread(codecs.decode_any, raw, "result")
        return from_json(raw, field="result")

    # --- dead letters ---------------------------------------------------------------------------------------

    def dead_letters(
        self, where: DeadLetterFilter | None = None, *, newest_first: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """Returns the dead letters, oldest first or newest first."""
        return self._dead_letters.each(where, newest_first=newest_first)

    async def dead_letter(self, entry_id: str) -> DeadLetter | None:
        """Returns a dead letter by its entry id."""
        return await self._dead_letters.get(entry_id)

    @knows_its_names("an argument of replay")
    async def replay(
        self,
        where: DeadLetterFilter | str | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
    ) -> int:
        """Puts dead letters back into the queue as new jobs; returns how many.

        `where` is a function of a dead letter, or the entry id of one; default: all. `rate` is jobs per second. A dead
        letter is replayed once, however often this is called.
        """
        return await self._dead_letters.replay(where, rate=rate, limit=limit)

    @knows_its_names("an argument of purge")
    async def purge(self, where: DeadLetterFilter | str | None = None, *, limit: int | None = None) -> int:
        """Removes dead letters; returns how many."""
        return await self._dead_letters.purge(where, limit=limit)

    async def export(self, path: str | Path, where: DeadLetterFilter | None = None) -> int:
        """Writes dead letters to a file, one JSON object per line; returns how many. They stay in the queue."""
        return await self._dead_letters.export(path, where)

    # --- closing --------------------------------------------------------------------------------------------

    async def obliterate(self) -> None:
        """Deletes the queue: jobs (active ones, too), scheduled jobs, dead letters, results and totals."""
        await self._transport.run(envelopes.delete_queue(self.keys, await self._consumers()))
        cursor, found = "0", list[str]()
        while True:
            cursor, found = await self._transport.run(
                read.scan_keys(self.keys, cursor, [self.keys.toril("")])
            )
            if found:
                await self._transport.run(manage.delete_keys(found))
            if cursor == "0":
                return

    async def _consumers(self) -> list[str]:
        """Returns the consumers that have lists of their own."""
        return []

    async def close(self) -> None:
        """Closes the connection. May be called twice."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        await self._transport.leave(error)


def _text(envelope: Envelope) -> bytes:
    text = envelope.to_bytes()
    check_size(text, {})
    return text


def _with_trace_context(envelope: Envelope, carrier: str | None) -> Envelope:
    """Returns the envelope with a trace context, unless it has one."""
    meta = envelope.meta
    if carrier is None or TRACE_FIELD in meta.extra:
        return envelope
    traced = dataclasses.replace(meta, extra={**meta.extra, TRACE_FIELD: carrier})
    return dataclasses.replace(envelope, meta=traced)


def _due(delay: Duration | None, run_at: datetime | None, now_ms: int) -> int | None:
    if delay is not None and run_at is not None:
        raise InvalidOption("run_at", "is given together with delay", "give one or the other")
    if run_at is not None:
        return datetime_to_ms("run_at", run_at)
    seconds = 0.0 if delay is None else to_seconds("delay", delay)
    return now_ms + to_ms(seconds) if seconds > 0 else None


def _id_of(text: bytes) -> str | None:
    """Returns the job's id; None for a message that cannot be read."""
    try:
        return Envelope.from_bytes(text).job_id
    except MalformedValue:
        return None
