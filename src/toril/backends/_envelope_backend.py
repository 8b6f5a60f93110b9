"""What list and stream queues share as sources: messages become deliveries, outcomes are handed in until they stand.

Guarantee: an outcome that the server could not write (it is full, a key is not what it should be) is kept, said in the
log, and handed in again; a message that must not be run is a dead letter; a failed call loses nothing it was given.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toril.backends.base import Fetched, FinishedJob
from toril.backends.envelopes import (
    LONGEST_WAIT,
    EnvelopeDelivery,
    SettleFields,
    args_of,
    pickup_trouble,
    read_envelope,
    refusal_of,
)
from toril.commands import locks
from toril.commands.command import Command
from toril.commands.envelope_settle import FetchedEnvelope, FetchReply, Settlement
from toril.commands.envelopes import EnvelopeKeys
from toril.errors import LockMissing, ReplyLost, ScriptFailed, TorilError
from toril.protocol.codec import to_json
from toril.protocol.outcome import RateLimited
from toril.transport import AsyncTransport, BlockingTransport, Reader

logger = logging.getLogger("toril.worker")

# A report outlives two missed heartbeats.
REPORT_LIVES = 3
# What could not be written is handed in again after this time, and in parts of this size.
AGAIN_AFTER = 1.0
AGAIN_AT_ONCE = 250
# A worker that stops has said all that matters before: signing off may take this long.
LEAVE_SECONDS = 0.2
# A worker that stops waits so many times for a server that cannot write.
LAST_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeConfig:
    """How a worker takes and keeps jobs, whatever the kind of its queue."""

    worker_id: str
    heartbeat: float = 15.0  # seconds
    names: tuple[str, ...] = ()  # of jobs that the worker has handlers for; "*": all
    max_attempts: int | None = None
    result_ms: int = 0  # how long results are kept; 0: not at all


H = TypeVar("H", bound=FetchReply)
K = TypeVar("K", bound=EnvelopeKeys)
T = TypeVar("T", bound=EnvelopeConfig)


class EnvelopeBackend(ABC, Generic[K, T, H]):
    """One list or stream queue, seen by one worker."""

    def __init__(
        self, keys: K, transport: AsyncTransport, renewer_transport: BlockingTransport, terms: T
    ) -> None:
        self.keys = keys
        self.transport = transport
        self._renewer_transport = renewer_transport
        self._terms = terms
        self._reader: Reader | None = None
        self._in_hand: dict[bytes | str, EnvelopeDelivery] = {}  # by reference
        self._owed: list[Settlement] = []  # dead letters of messages that were never run
        self._unwritten: list[Settlement] = []  # outcomes that the server could not write
        self._paying: dict[int, Settlement] = {}  # what of both is on its way, by identity
        self._again_at = 0.0
        self._in_doubt: set[bytes | str] = set()  # references of outcomes whose reply was lost
        self._limited_until = 0.0
        self.known_names: frozenset[str] = frozenset()

    # --- what each kind does in its own way -------------------------------------------------------------------

    @abstractmethod
    async def _run(self, settlements: Sequence[Settlement], take: int, now_ms: int) -> H:
        """Settles all and takes up to so many jobs, in one call."""

    @abstractmethod
    def _wait_command(self, timeout: float) -> Command[bool]:
        """Blocks until there may be a job, and takes none."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tells the server that this worker is gone; nothing is owed any more, and nothing is lost without it."""

    async def _return_stock(self) -> None:
        """Gives back deliveries that were never handed out."""

    @abstractmethod
    def _more_waits(self, harvest: H) -> bool:
        """Whether asking again at once may bring more."""

    _may_recover = False  # whether jobs of dead workers may be left for us

    async def _recover(self, room: int) -> None:
        """Takes over up to so many jobs of dead workers into what we hold."""

    def _from_stock(self, room: int) -> list[EnvelopeDelivery]:  # noqa: ARG002
        """Deliveries that we hold already."""
        return []

    def _back_to_stock(self, deliveries: Sequence[EnvelopeDelivery]) -> None:
        """Takes them back: they were not handed out."""

    def _name_of(self, text: bytes, reference: bytes | str) -> str:  # noqa: ARG002
        """A name for a message that has none."""
        return str(reference)

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.transport.connect()
        if self._reader is None:
            self._reader = self.transport.open_reader(name=None)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        try:
            await self._return_stock()
            await self._pay_all()
            # A server that does not answer must not hold up a worker's end; consumers that are gone are removed later.
            await asyncio.wait_for(self._leave(), LEAVE_SECONDS)
        except TimeoutError:
            logger.warning("worker %s could not sign off: the server does not answer", self._terms.worker_id)
        except TorilError as error:
            logger.warning("worker %s could not say good-bye: %s", self._terms.worker_id, error)
        for one in (*self._owed, *self._unwritten):
            logger.error("job %s: its outcome (%s) could not be written", one.job_id, one.kind)
        await self.transport.close()

    async def _pay_all(self) -> None:
        """Hands in all that is owed, and waits a while for a server that cannot write it."""
        for left in reversed(range(LAST_TRIES)):
            self._again_at = 0.0
            while owed := self._take_owed():
                await self._pay(owed)
            if not self._unwritten:
                return
            if left:
                await asyncio.sleep(AGAIN_AFTER)

    async def _pay(self, owed: Sequence[Settlement]) -> None:
        try:
            harvest = await self._run(owed, 0, await self.transport.now_ms())
        except BaseException:
            self._paid(owed)
            self._owed[:0] = owed
            raise
        self._paid(owed)
        self._keep_unwritten(owed, harvest.ack_errors)

    # --- settle and take ----------------------------------------------------------------------------------------

    async def exchange(self, settled: Sequence[FinishedJob], room: int) -> Fetched:
        now_ms = await self.transport.now_ms()
        limited = self._limited_for(settled)
        wanted = 0 if limited else room
        if wanted and self._may_recover:
            await self._recover(wanted)
        stock = self._from_stock(wanted)
        owed = self._take_owed()
        settlements = [self._settlement(one, now_ms) for one in settled]
        try:
            harvest = await self._run([*owed, *settlements], wanted - len(stock), now_ms)
        except BaseException as error:
            if isinstance(error, ReplyLost):
                self._in_doubt.update(one.reference for one in settlements)
            self._paid(owed)
            self._owed[:0] = owed  # whatever of it was written is recognised
            self._back_to_stock(stock)
            raise
        self._paid(owed)
        self._keep_unwritten([*owed, *settlements], harvest.ack_errors)
        answers = zip(settled, harvest.ack_errors[len(owed) :], strict=True)
        ack_errors = [self._ack_error(one.delivery, answer) for one, answer in answers]
        fresh = self._admit(harvest.jobs, now_ms)
        return Fetched(
            deliveries=[*stock, *fresh],
            ack_errors=ack_errors,
            limited_for=limited,
            next_due_in=_seconds_until(harvest.next_due_ms, now_ms),
            exhausted=not self._owed and (bool(limited) or not self._more_waits(harvest)),
            refused=pickup_trouble(harvest.fetch_error),
            at_ms=now_ms,
        )

    def _limited_for(self, settled: Sequence[FinishedJob]) -> float:
        for one in settled:
            if isinstance(one.outcome, RateLimited) and one.outcome.delay:
                self._limited_until = max(self._limited_until, time.monotonic() + one.outcome.delay)
        return max(0.0, self._limited_until - time.monotonic())

    def _settlement(self, one: FinishedJob, now_ms: int) -> Settlement:
        delivery: EnvelopeDelivery = one.delivery
        return _settlement(delivery, args_of(delivery, one.outcome, now_ms, self._terms.result_ms))

    def _take_owed(self) -> list[Settlement]:
        owed, self._owed = self._owed, []
        if self._unwritten and time.monotonic() >= self._again_at:
            owed += self._unwritten[:AGAIN_AT_ONCE]
            del self._unwritten[:AGAIN_AT_ONCE]
        self._paying.update((id(one), one) for one in owed)
        return owed

    def _paid(self, owed: Sequence[Settlement]) -> None:
        for one in owed:
            del self._paying[id(one)]

    def _owing(self) -> list[bytes | str]:
        """References of messages that we still have to settle, whatever became of their deliveries."""
        return [one.reference for one in (*self._owed, *self._unwritten, *self._paying.values())]

    def _keep_unwritten(
        self, settlements: Sequence[Settlement], ack_errors: Sequence[TorilError | None]
    ) -> None:
        failed = [
            (one, answer)
            for one, answer in zip(settlements, ack_errors, strict=True)
            if isinstance(answer, ScriptFailed)
        ]
        if failed:
            self._unwritten += [one for one, _ in failed]
            self._again_at = time.monotonic() + AGAIN_AFTER
            logger.warning(
                "%d outcomes could not be written and are handed in again: %s", len(failed), failed[0][1]
            )

    def _ack_error(self, delivery: EnvelopeDelivery, answer: TorilError | None) -> TorilError | None:
        self._forget(delivery)
        doubtful = delivery.reference in self._in_doubt
        self._in_doubt.discard(delivery.reference)
        if isinstance(answer, ScriptFailed):
            return None  # it will be written later
        if doubtful and isinstance(answer, LockMissing):
            return None  # nothing is in hand: the call whose reply was lost had done its work
        return answer

    def _admit(self, jobs: Sequence[FetchedEnvelope], now_ms: int) -> list[EnvelopeDelivery]:
        """Deliveries for messages that can be run; the others become dead letters with the next call."""
        admitted = []
        for job in jobs:
            known = self._in_hand.get(job.reference)
            if known is not None:
                known.fence = job.fence  # claimed from ourselves: heartbeats had failed for long
                continue
            envelope, problem = read_envelope(job.text, self._name_of(job.text, job.reference))
            delivery = EnvelopeDelivery(envelope, job)
            words = refusal_of(delivery, problem, self._terms.max_attempts, now_ms)
            if words is None:
                self._take_in(delivery)
                admitted.append(delivery)
            else:
                self._owed.append(_settlement(delivery, words))
        return admitted

    def _take_in(self, delivery: EnvelopeDelivery) -> None:
        self._in_hand[delivery.reference] = delivery

    def _forget(self, delivery: EnvelopeDelivery) -> None:
        self._in_hand.pop(delivery.reference, None)

    # --- waiting --------------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None or self._owed:
            return
        timeout = min(seconds, LONGEST_WAIT)
        await self._reader.run(self._wait_command(timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def decline(self) -> None:
        """A wait takes nothing, and every waiting worker was told."""

    # --- reporting ------------------------------------------------------------------------------------------------

    def report(self, figures: dict[str, Any]) -> None:
        life = max(1000, round(self._terms.heartbeat * REPORT_LIVES * 1000))
        now = self._renewer_transport.now_ms()
        body = to_json({"worker": self._terms.worker_id, "at": now, **figures}, field="report")
        names = () if figures.get("state") == "stopped" else self._terms.names
        calls = [
            *locks.report_worker(self.keys, self._terms.worker_id, body, now_ms=now, expire_ms=life),
            *self._signs_of_life(now),
            *locks.announce_names(self.keys, names, now_ms=now, expire_ms=life),
        ]
        answers = self._renewer_transport.run_many(calls)
        for answer in answers:
            if isinstance(answer, TorilError):
                raise answer
        self.known_names = answers[-1]

    def _signs_of_life(self, now_ms: int) -> list[Command[Any]]:  # noqa: ARG002
        """What goes along with each report."""
        return []


def _settlement(delivery: EnvelopeDelivery, words: SettleFields) -> Settlement:
    return Settlement(
        kind=words.kind,
        job_id=delivery.envelope.job_id,
        reference=delivery.reference,
        fence=delivery.fence,
        due_ms=words.due_ms,
        text=words.text,
    )


def _seconds_until(due_ms: int, now_ms: int) -> float | None:
    return None if due_ms < 0 else max(0.0, (due_ms - now_ms) / 1000)
