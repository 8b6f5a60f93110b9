"""What the backends of list and stream queues share: messages become deliveries, outcomes are submitted until written.

Guarantee: an outcome that the server could not write (it is full, a key has the wrong type) is kept, logged and sent
again; a message that must not be run becomes a dead letter; a failed call loses nothing it was given.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from toril.backends._call_tasks import CallTasks
from toril.backends._unwritten import Unwritten
from toril.backends._worker_report import publish_report
from toril.backends.base import Fetched, FinishedJob, OnReply, ReadyJobs, ready_jobs
from toril.backends.envelopes import (
    LONGEST_WAIT,
    EnvelopeDelivery,
    SettleFields,
    fetch_error,
    read_envelope,
    reject_fields,
    settle_fields,
)
from toril.commands import envelopes, name_refusals
from toril.commands.command import Command
from toril.commands.envelope_settle import FetchedEnvelope, FetchReply, Settlement
from toril.commands.envelopes import EnvelopeKeys
from toril.commands.name_refusals import RefusedNames
from toril.errors import Interrupted, LockMissing, ReplyLost, ScriptFailed, TorilError
from toril.protocol.outcome import RateLimited
from toril.transport import AsyncTransport, BlockingTransport, Reader

logger = logging.getLogger("toril.worker")

# A worker that stops has written all that matters before: deregistering may take this long.
DEREGISTER_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeConfig:
    """How a worker fetches jobs and renews their locks, for both kinds of queue."""

    worker_id: str
    heartbeat: float = 15.0  # seconds
    names: tuple[str, ...] = ()  # of jobs that the worker has handlers for; "*": all
    max_attempts: int | None = None
    result_ms: int = 0  # how long results are kept; 0: not at all


R = TypeVar("R", bound=FetchReply)
K = TypeVar("K", bound=EnvelopeKeys)
C = TypeVar("C", bound=EnvelopeConfig)


@dataclass(slots=True)
class _Call:
    """One call that settles and fetches."""

    finished: Sequence[FinishedJob[EnvelopeDelivery]]
    capacity: int
    on_reply: OnReply[EnvelopeDelivery]
    limited_for: float
    now_ms: int = 0
    resent: Sequence[Settlement] = ()  # of earlier calls
    settlements: Sequence[Settlement] = ()
    claimed: Sequence[EnvelopeDelivery] = ()


class EnvelopeBackend(ABC, Generic[K, C, R]):
    """One list or stream queue, used by one worker."""

    has_cancellations = False
    examined_at_once = 2500

    def __init__(
        self, keys: K, transport: AsyncTransport, renewer_transport: BlockingTransport, config: C
    ) -> None:
        self.keys = keys
        self.transport = transport
        self._renewer_transport = renewer_transport
        self._config = config
        self._reader: Reader | None = None
        self._tasks = CallTasks()
        self._deliveries: dict[bytes | str, EnvelopeDelivery] = {}  # by reference
        self._unwritten = Unwritten()
        self._unclear: set[bytes | str] = set()  # references of outcomes whose reply was lost
        self._limited_until = 0.0
        self.known_names: frozenset[str] = frozenset()

    # --- what differs between the kinds -----------------------------------------------------------------------

    @abstractmethod
    def _settle_command(self, settlements: Sequence[Settlement], take: int, now_ms: int) -> Command[R]:
        """Settles all and fetches up to so many jobs, in one call."""

    def _note_reply(self, reply: R) -> None:
        """Is called before the fetched jobs are delivered."""

    @abstractmethod
    def _wait_command(self, timeout: float) -> Command[bool]:
        """Blocks until there may be a job, and fetches none."""

    @abstractmethod
    async def _deregister(self) -> None:
        """Removes this worker from the server's records; everything is settled, and nothing is lost without it."""

    @abstractmethod
    def _has_more(self, reply: R, /) -> bool:
        """Whether another fetch may return more at once."""

    @abstractmethod
    async def _count_waiting(self) -> int:
        """Jobs that a fetch could return now, without scheduled ones."""

    def _count_claimed(self) -> int:
        """Claimed jobs that were not delivered yet."""
        return 0

    _may_recover = False  # whether jobs of dead workers may be left for us

    async def _recover(self, capacity: int) -> None:
        """Claims up to so many jobs of dead workers."""

    async def _requeue_claimed(self) -> None:
        """Returns claimed jobs that were never delivered."""

    def _take_claimed(self, _capacity: int, /) -> list[EnvelopeDelivery]:
        """Claimed jobs that were not delivered yet."""
        return []

    def _put_back_claimed(self, deliveries: Sequence[EnvelopeDelivery]) -> None:
        """Keeps them for the next call: this one failed."""

    def _id_of(self, _text: bytes, reference: bytes | str, /) -> str:
        """An id for a message that has none."""
        return str(reference)

    # --- open and close -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.transport.connect()
        if self._reader is None:
            self._reader = self.transport.open_reader(name=None)

    async def close(self, answers: bool = True, /) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        try:
            await self._requeue_claimed()
            await self._unwritten.write_all(self._write)
            if answers:  # consumers that are gone are removed later
                await asyncio.wait_for(self._deregister(), DEREGISTER_SECONDS)
        except TimeoutError:
            logger.warning(
                "worker %s could not deregister, because the server does not answer; other workers remove it later",
                self._config.worker_id,
            )
        except TorilError as error:
            logger.warning(
                "worker %s could not deregister; other workers remove it later: %s",
                self._config.worker_id,
                error,
            )
        self._unwritten.log_rest()
        await self.transport.close()
        await self._tasks.wait()

    async def _write(self, settlements: Sequence[Settlement]) -> Sequence[TorilError | None]:
        now_ms = await self.transport.now_ms()
        reply = await self.transport.run(self._settle_command(settlements, 0, now_ms), firm=True)
        self._note_reply(reply)
        return reply.ack_errors

    # --- settle and fetch ---------------------------------------------------------------------------------------

    def submit(
        self,
        finished: Sequence[FinishedJob[EnvelopeDelivery]],
        capacity: int,
        on_reply: OnReply[EnvelopeDelivery],
    ) -> None:
        limited = self._limited_for(finished)
        call = _Call(finished, 0 if limited else capacity, on_reply, limited)
        if self.transport.clock.stale or (call.capacity and self._may_recover):
            self._tasks.spawn(self._prepare_and_send(call))
        else:
            self._send(call)

    def _limited_for(self, finished: Sequence[FinishedJob[EnvelopeDelivery]]) -> float:
        for one in finished:
            if isinstance(one.outcome, RateLimited) and one.outcome.delay:
                self._limited_until = max(self._limited_until, time.monotonic() + one.outcome.delay)
        return max(0.0, self._limited_until - time.monotonic())

    async def _prepare_and_send(self, call: _Call) -> None:
        try:
            await self.transport.now_ms()
            if call.capacity and self._may_recover:
                await self._recover(call.capacity)
            self._send(call)
        except asyncio.CancelledError:
            self._fail(call, Interrupted("the call was interrupted"))
            raise
        except Exception as error:  # noqa: BLE001  # the caller submits the outcomes again
            self._fail(call, error)

    def _send(self, call: _Call) -> None:
        call.now_ms = now_ms = self.transport.clock.now_ms()
        call.settlements = [self._settlement(one, now_ms) for one in call.finished]
        call.claimed = self._take_claimed(call.capacity)
        call.resent = self._unwritten.take()
        command = self._settle_command(
            [*call.resent, *call.settlements], call.capacity - len(call.claimed), now_ms
        )
        self.transport.submit(command, functools.partial(self._replied, call))

    def _settlement(self, one: FinishedJob[EnvelopeDelivery], now_ms: int) -> Settlement:
        fields = settle_fields(one.delivery, one.outcome, now_ms, self._config.result_ms)
        return _settlement(one.delivery, fields)

    def _fail(self, call: _Call, error: Exception) -> None:
        if isinstance(error, ReplyLost):
            self._unclear.update(one.reference for one in call.settlements)
        self._unwritten.put_back(call.resent)  # what of it was written is recognised
        self._put_back_claimed(call.claimed)
        call.on_reply(error)

    def _replied(self, call: _Call, reply: R | TorilError) -> None:
        if isinstance(reply, TorilError):
            self._fail(call, reply)
            return
        self._note_reply(reply)
        self._complete(call, reply)

    def _complete(self, call: _Call, reply: R) -> None:
        resent = len(call.resent)
        self._unwritten.keep_failed([*call.resent, *call.settlements], reply.ack_errors)
        answers = zip(call.finished, reply.ack_errors[resent:], strict=True)
        ack_errors = [self._ack_error(one.delivery, answer) for one, answer in answers]
        fetched = self._accept(reply.jobs, call.now_ms)
        limited = call.limited_for
        call.on_reply(
            Fetched(
                deliveries=[*call.claimed, *fetched],
                ack_errors=ack_errors,
                limited_for=limited,
                next_due_in=_seconds_until(reply.next_due_ms, call.now_ms),
                exhausted=not self._unwritten.rejected and (bool(limited) or not self._has_more(reply)),
                refused=fetch_error(reply.fetch_error),
                at_ms=call.now_ms,
            )
        )

    def _ack_error(self, delivery: EnvelopeDelivery, answer: TorilError | None) -> TorilError | None:
        self._unregister(delivery)
        unclear = delivery.reference in self._unclear
        self._unclear.discard(delivery.reference)
        if isinstance(answer, ScriptFailed):
            return None  # it will be written later
        if unclear and isinstance(answer, LockMissing):
            return None  # the call whose reply was lost had settled it
        return answer

    def _accept(self, jobs: Sequence[FetchedEnvelope], now_ms: int) -> list[EnvelopeDelivery]:
        """Deliveries of messages that can be run; the others become dead letters with the next call."""
        accepted = []
        for job in jobs:
            known = self._deliveries.get(job.reference)
            if known is not None:
                known.fence = job.fence  # claimed from ourselves: renewals had failed for long
                continue
            envelope, problem = read_envelope(job.text, self._id_of(job.text, job.reference))
            delivery = EnvelopeDelivery(envelope, job)
            fields = reject_fields(delivery, problem, self._config.max_attempts, now_ms)
            if fields is None:
                self._register(delivery)
                accepted.append(delivery)
            else:
                self._unwritten.rejected.append(_settlement(delivery, fields))
        return accepted

    def _register(self, delivery: EnvelopeDelivery) -> None:
        self._deliveries[delivery.reference] = delivery

    def _unregister(self, delivery: EnvelopeDelivery) -> None:
        self._deliveries.pop(delivery.reference, None)

    # --- waiting and reporting ------------------------------------------------------------------------------------

    async def count_ready(self) -> ReadyJobs:
        now_ms = self.transport.clock.now_ms()
        waiting, due, first = await asyncio.gather(
            self._count_waiting(),
            self.transport.run(envelopes.count_due(self.keys, now_ms)),
            self.transport.run(envelopes.scheduled(self.keys, 0, 0)),
        )
        first_due = first[0][1] if first else None
        return ready_jobs([waiting, due], first_due, now_ms, held=self._count_claimed())

    async def wait(self, seconds: float) -> None:
        if self._reader is None or self._unwritten.rejected:
            return
        timeout = min(seconds, LONGEST_WAIT)
        await self._reader.run(self._wait_command(timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def release_marker(self) -> None:
        """These kinds have no marker: every waiting worker wakes by itself."""

    def cancellations(self, _: Sequence[EnvelopeDelivery], /) -> Sequence[tuple[EnvelopeDelivery, str]]:
        """Jobs of these kinds cannot be cancelled from outside."""
        return ()

    async def refuse_names(self, known: Sequence[str], limit: int, factor: float, /) -> RefusedNames:
        now_ms = await self.transport.now_ms()
        return await self.transport.run(
            name_refusals.refuse_envelope_names(
                self.keys,
                known,
                limit=limit,
                factor=factor,
                now_ms=now_ms,
                max_attempts=self._config.max_attempts,
            )
        )

    def publish_report(self, figures: Mapping[str, object]) -> None:
        more = self._report_commands(self._renewer_transport.now_ms())
        self.known_names = publish_report(self._renewer_transport, self.keys, self._config, figures, more)

    def _report_commands(self, _now_ms: int, /) -> list[Command[object]]:
        """Commands that are sent with each report."""
        return []


def _settlement(delivery: EnvelopeDelivery, fields: SettleFields) -> Settlement:
    return Settlement(
        kind=fields.kind,
        job_id=delivery.envelope.job_id,
        reference=delivery.reference,
        fence=delivery.fence,
        due_ms=fields.due_ms,
        text=fields.text,
    )


def _seconds_until(due_ms: int, now_ms: int) -> float | None:
    return None if due_ms < 0 else max(0.0, (due_ms - now_ms) / 1000)
