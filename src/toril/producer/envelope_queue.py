"""What applications call on list and stream queues: add, look, and deal with dead letters.

Guarantee: a job is checked before any I/O, and an `add` whose reply was lost is repeated without adding twice.
"""

from __future__ import annotations

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
from toril.commands import envelopes, manage, read
from toril.commands.envelopes import EnvelopeKeys, EnvelopeToAdd
from toril.commands.once import Calls
from toril.errors import InvalidOption, JobNotFound, MalformedValue
from toril.protocol.codec import PayloadCodec, check_size, from_json, to_json
from toril.protocol.duration import Duration, datetime_to_ms, ms_to_datetime, to_ms, to_seconds
from toril.protocol.envelope import DEFAULT_MAX_ATTEMPTS, TRACE_FIELD, DeadLetter, Envelope
from toril.protocol.option_names import knows_its_names
from toril.telemetry.hooks import NO_METRICS, Adding, MetricsCollector, Tracer
from toril.transport import AsyncTransport

NewEnvelope: TypeAlias = Envelope | tuple[str, Mapping[str, Any]] | str

# Envelopes in one call: about five milliseconds of the server's time.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeCounts:
    """Where the jobs of a list or stream queue are."""

    waiting: int  # nobody has taken them
    active: int  # a worker has them; on a list this is known for reliable pickup only
    scheduled: int  # they wait for their time: delayed, or to be tried again
    dead: int  # dead letters

    @property
    def pending(self) -> int:
        """What is still to be done."""
        return self.waiting + self.active + self.scheduled


class EnvelopeQueue:
    """What the queues of both kinds share."""

    keys: EnvelopeKeys

    def __init__(
        self,
        name: str,
        keys: EnvelopeKeys,
        transport: AsyncTransport,
        *,
        source: str,
        payload: Any,
        metrics: MetricsCollector | None,
        tracer: Tracer | None,
    ) -> None:
        self.name = name
        self.keys = keys
        self._transport = transport
        self._source = source
        self._payload: PayloadCodec[Any] | None = None if payload is None else PayloadCodec(payload)
        self._metrics = metrics or NO_METRICS
        self._tracer = tracer
        self._producer = uuid.uuid4().hex
        self._calls = itertools.count(1)
        self._letters = DeadLetters(keys, transport)

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
        """Adds one job, to run now, after `delay`, or at `run_at`; the envelope as it was sent."""
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
        made = [self._envelope_of(one, max_attempts, now) for one in jobs]
        return await self._add_all(made, _due(delay, None, now_ms), "addBulk")

    async def _add_all(self, made: list[Envelope], due: int | None, operation: Adding) -> list[Envelope]:
        if self._tracer is None:
            await self._send_all(made, due)
            return made
        with self._tracer.adding(self.name, [one.task_type for one in made], operation=operation) as span:
            made = [_carrying(one, span.carrier) for one in made]
            await self._send_all(made, due)
            span.added([one.job_id for one in made])
            return made

    async def _send_all(self, made: Sequence[Envelope], due: int | None) -> None:
        texts = [EnvelopeToAdd(self._text(one), due) for one in made]
        for start in range(0, len(texts), BATCH):
            await self._send(texts[start : start + BATCH])

    def _envelope_of(self, job: NewEnvelope, max_attempts: int, now: datetime) -> Envelope:
        if isinstance(job, Envelope):
            return job
        task_type, payload = (job, None) if isinstance(job, str) else job
        return Envelope.new(task_type, payload, max_attempts=max_attempts, source=self._source, now=now)

    def _text(self, envelope: Envelope) -> bytes:
        if self._payload is not None:
            self._payload.decode(to_json(envelope.payload))
        text = envelope.to_bytes()
        check_size(text, {})
        return text

    async def _send(self, batch: Sequence[EnvelopeToAdd]) -> None:
        call = envelopes.add_envelopes(self.keys, batch, producer=self._producer, sequence=next(self._calls))
        await self._transport.run(call)
        self._metrics.increment_jobs_added(f"{envelopes.kind_of(self.keys)}:{self.name}", len(batch))

    # --- looking --------------------------------------------------------------------------------------------

    async def counts(self) -> EnvelopeCounts:
        """Where the jobs are."""
        raise NotImplementedError

    async def pending(self) -> int:
        """How many jobs are still to be done: waiting, in a worker's hand, or scheduled."""
        return (await self.counts()).pending

    async def totals(self) -> Mapping[str, int]:
        """How many jobs ever completed, were retried, died, stalled, were replayed or purged."""
        return await self._transport.run(envelopes.totals(self.keys))

    async def scheduled(self, limit: int = 100) -> list[tuple[Envelope, datetime]]:
        """The jobs that wait for their time, soonest first, and when; stand-ins for what is no envelope."""
        rows = await self._transport.run(envelopes.scheduled(self.keys, 0, limit - 1))
        return [(read_envelope(text, "scheduled")[0], ms_to_datetime(due)) for text, due in rows]

    @knows_its_names("an argument of promote")
    async def promote(self, job_ids: Collection[str] | None = None, *, limit: int | None = None) -> int:
        """Makes jobs due that wait for their time, all or those with these ids, soonest first; how many."""
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
        """Removes all jobs that nobody has taken yet, with `delayed` also those that wait for their time; how many.

        Jobs that are added while it works stay; what is left when it is interrupted waits as before.
        """
        raise NotImplementedError

    async def remove(self, job_id: str) -> bool:
        """Removes a job that waits for its time or is dead; False when there is none with this id."""
        calls, found = Calls(self.keys), False
        async for text in self._scheduled_with(job_id):
            found |= await self._transport.run(envelopes.unschedule(self.keys, text, calls))
        purged = await self.purge(lambda letter: job_id in (letter.job_id, letter.entry_id))
        return found or purged > 0

    async def _scheduled_with(self, job_id: str) -> AsyncIterator[bytes]:
        """The scheduled jobs of an id, by pages: there may be many others."""
        for start in itertools.count(0, BATCH):
            page = await self._transport.run(envelopes.scheduled(self.keys, start, start + BATCH - 1))
            for text, _ in page:
                if _id_of(text) == job_id:
                    yield text
            if len(page) < BATCH:
                return

    async def result(self, job_id: str) -> Any:
        """What a handler returned for a job, as long as its worker keeps results; `JobNotFound` otherwise."""
        raw = await self._transport.run(envelopes.result(self.keys, job_id))
        if raw is None:
            hint = "it has not finished, its worker was not told to keep_results, or the time is over"
            raise JobNotFound(job_id, command="result", hint=hint)
        return from_json(raw, field="result")

    # --- dead letters ---------------------------------------------------------------------------------------

    def dead_letters(
        self, where: DeadLetterFilter | None = None, *, newest_first: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first or newest first."""
        return self._letters.each(where, newest_first=newest_first)

    async def dead_letter(self, entry_id: str) -> DeadLetter | None:
        """One dead letter by its entry id."""
        return await self._letters.get(entry_id)

    @knows_its_names("an argument of replay")
    async def replay(
        self,
        where: DeadLetterFilter | str | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
    ) -> int:
        """Gives dead jobs another life, with all their attempts; how many.

        `where` is a function of a dead letter, or the entry id of one; left out: all. `rate` is jobs per second. A
        letter is replayed once, however often this is called.
        """
        return await self._letters.replay(where, rate=rate, limit=limit)

    @knows_its_names("an argument of purge")
    async def purge(self, where: DeadLetterFilter | str | None = None, *, limit: int | None = None) -> int:
        """Removes dead letters for good; how many."""
        return await self._letters.purge(where, limit=limit)

    async def export(self, path: str | Path, where: DeadLetterFilter | None = None) -> int:
        """Writes dead letters to a file, one JSON object in a line; how many. The letters stay."""
        return await self._letters.export(path, where)

    # --- the end --------------------------------------------------------------------------------------------

    async def obliterate(self) -> None:
        """Removes everything: jobs (those in hand, too), scheduled jobs, dead letters, results and totals."""
        await self._transport.run(envelopes.delete_queue(self.keys, await self._consumers()))
        cursor, found = "0", list[str]()
        while True:
            cursor, found = await self._transport.run(read.scan_toril_keys(self.keys, cursor))
            if found:
                await self._transport.run(manage.delete_keys(found))
            if cursor == "0":
                return

    async def _consumers(self) -> list[str]:
        """Workers with lists of their own."""
        return []

    async def close(self) -> None:
        """Closes the connection. May be called twice."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        await self._transport.leave(error)


def _carrying(envelope: Envelope, carrier: str | None) -> Envelope:
    """The envelope with a trace context, unless it has one."""
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
    """The job's id; None for a message that cannot be read."""
    try:
        return Envelope.from_bytes(text).job_id
    except MalformedValue:
        return None
