"""The list kind as a source: envelopes leave the list as they are taken, under a lock for each job.

Guarantee: at most once; a graceful stop loses nothing, because waiting takes no job and what is in hand goes back. With
reliable pickup at least once: a taken job stands in its worker's own list until it is settled, and goes back to the
queue when that worker has not been seen for the length of a lock.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands import list_work, locks
from toril.commands._command import Command
from toril.commands.list_work import ListPickup, ListSettlement
from toril.contract.codec import to_json
from toril.contract.errors import LockMissing, ReplyLost, TorilError
from toril.contract.keys import ListKeys
from toril.contract.outcome import RateLimited
from toril.queues._envelopes import (
    LONGEST_WAIT,
    EnvelopeDelivery,
    pickup_trouble,
    read_envelope,
    refusal_of,
    words_of,
)
from toril.queues.source import Promise, Settled, Taken
from toril.store import AsyncStore, BlockingStore, Reader

logger = logging.getLogger("toril.worker")

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
RECOVERED_PER_CALL = 500
# A report outlives two missed heartbeats.
REPORT_LIVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTerms:
    """How a worker takes and keeps jobs."""

    worker_id: str
    consumer: str  # names the worker's own list; must not be reused by another process
    reliable: bool = False
    lock_ms: int = 30_000
    heartbeat: float = 15.0  # seconds
    max_attempts: int | None = None
    result_ms: int = 0  # how long results are kept; 0: not at all


class ListSource:
    """One list queue, seen by one worker."""

    kind = "list"

    def __init__(
        self, keys: ListKeys, store: AsyncStore, keeper_store: BlockingStore, terms: ListTerms
    ) -> None:
        self.keys = keys
        self.store = store
        self.promise: Promise = "at least once" if terms.reliable else "at most once"
        self._keeper_store = keeper_store
        self._terms = terms
        self._consumer = terms.consumer if terms.reliable else ""
        self._reader: Reader | None = None
        self._in_hand: dict[bytes, EnvelopeDelivery] = {}  # by the text that was taken
        self._owed: list[ListSettlement] = []  # dead letters of messages that were never run
        self._in_doubt: set[str] = set()  # ids of outcomes whose reply was lost
        self._unknown: set[bytes] = set()  # texts in our own list that we did not know at the last sweep
        self._limited_until = 0.0

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.store.connect()
        if self._reader is None:
            self._reader = self.store.open_reader(name=None)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        try:
            await self._leave()
        except TorilError as error:
            logger.warning("worker %s could not say good-bye: %s", self._terms.worker_id, error)
        await self.store.close()

    async def _leave(self) -> None:
        if self._owed:
            await self._run(self._owed, 0, await self.store.now_ms(), self._new_token())
        if self._consumer and not await self.store.run(list_work.in_hand(self.keys, self._consumer)):
            await self.store.run(list_work.leave(self.keys, self._consumer))

    # --- settle and take ------------------------------------------------------------------------------------

    async def exchange(self, settled: Sequence[Settled], room: int) -> Taken:
        now_ms = await self.store.now_ms()
        self._hold_rate(settled)
        limited = max(0.0, self._limited_until - time.monotonic())
        owed, self._owed = self._owed, []
        settlements = [self._settlement(one, now_ms) for one in settled]
        token = self._new_token()
        try:
            harvest = await self._run([*owed, *settlements], 0 if limited else room, now_ms, token)
        except ReplyLost:
            self._in_doubt.update(one.delivery.id for one in settled)
            self._owed = owed + self._owed  # written twice at worst; lost otherwise
            raise
        except BaseException:
            self._owed = owed + self._owed
            raise
        verdicts = [
            self._verdict(one.delivery, answer)
            for one, answer in zip(settled, harvest.verdicts[len(owed) :], strict=True)
        ]
        deliveries = self._admit(harvest.jobs, token, now_ms)
        return Taken(
            deliveries=deliveries,
            verdicts=verdicts,
            limited_for=limited,
            next_due_in=_seconds_until(harvest.next_due_ms, now_ms),
            exhausted=not self._owed and (bool(limited) or not harvest.left),
            refused=pickup_trouble(harvest.trouble),
        )

    @staticmethod
    def _new_token() -> str:
        return str(uuid.uuid4())

    async def _run(
        self, settlements: Sequence[ListSettlement], take: int, now_ms: int, token: str
    ) -> list_work.ListHarvest:
        pickup = ListPickup(token=token, lock_ms=self._terms.lock_ms, consumer=self._consumer)
        return await self.store.run(
            list_work.exchange(self.keys, settlements, take=take, pickup=pickup, now_ms=now_ms)
        )

    def _settlement(self, one: Settled, now_ms: int) -> ListSettlement:
        delivery: EnvelopeDelivery = one.delivery
        words = words_of(delivery, one.outcome, now_ms, self._terms.result_ms)
        return ListSettlement(
            kind=words.kind,
            job_id=delivery.id,
            token=str(delivery.fence),
            taken=delivery.text,
            due_ms=words.due_ms,
            text=words.text,
        )

    def _verdict(self, delivery: EnvelopeDelivery, answer: TorilError | None) -> TorilError | None:
        self._in_hand.pop(delivery.text, None)
        if delivery.id in self._in_doubt:
            self._in_doubt.discard(delivery.id)
            if isinstance(answer, LockMissing):
                return None  # it left our list with the call whose reply was lost
        return answer

    def _admit(self, jobs: Sequence[tuple[bytes, int]], token: str, now_ms: int) -> list[EnvelopeDelivery]:
        """Deliveries for messages that can be run; the others become dead letters with the next call."""
        admitted = []
        for text, stalls in jobs:
            envelope, problem = read_envelope(text, _digest(text))
            delivery = EnvelopeDelivery(
                envelope, text, reference=envelope.job_id, fence=token, silent_deliveries=stalls
            )
            words = refusal_of(delivery, problem, self._terms.max_attempts, now_ms)
            if words is None:
                self._in_hand[text] = delivery
                admitted.append(delivery)
            else:
                self._owed.append(
                    ListSettlement(
                        kind=words.kind, job_id=delivery.id, token=token, taken=text, text=words.text
                    )
                )
        return admitted

    def _hold_rate(self, settled: Sequence[Settled]) -> None:
        for one in settled:
            if isinstance(one.outcome, RateLimited) and one.outcome.delay:
                self._limited_until = max(self._limited_until, time.monotonic() + one.outcome.delay)

    # --- waiting --------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None or self._owed:
            return
        timeout = min(seconds, LONGEST_WAIT)
        await self._reader.run(list_work.wait_for_job(self.keys, timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def decline(self) -> None:
        """A wait takes nothing, and every waiting worker was told."""

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        lost: set[str] = set()
        now = self._keeper_store.now_ms()
        for start in range(0, len(deliveries), LOCKS_PER_CALL):
            held = [(one.id, str(one.fence)) for one in deliveries[start : start + LOCKS_PER_CALL]]
            gone = self._keeper_store.run(
                list_work.keep(
                    self.keys, held, lock_ms=self._terms.lock_ms, now_ms=now, consumer=self._consumer
                )
            )
            lost |= gone
        return [one for one in deliveries if one.id in lost]

    async def sweep(self) -> list[str]:
        """Nothing to recover when a job leaves the list for good; with reliable pickup, what dead workers had."""
        if not self._consumer:
            return []
        await self._give_back_unknown()
        unseen = await self.store.now_ms() - self._terms.lock_ms
        texts = await self.store.run(
            list_work.recover(self.keys, unseen_since_ms=unseen, limit=RECOVERED_PER_CALL)
        )
        return [read_envelope(text, _digest(text))[0].job_id for text in texts]

    async def _give_back_unknown(self) -> None:
        """Jobs that a lost reply brought: they stand in our own list, and twice in a row we do not know of them."""
        texts = await self.store.run(list_work.in_own_list(self.keys, self._consumer))
        owed = {one.taken for one in self._owed}
        unknown = {text for text in texts if text not in self._in_hand and text not in owed}
        twice, self._unknown = unknown & self._unknown, unknown
        if twice:
            jobs = [(read_envelope(text, "")[0].job_id, text) for text in twice]
            await self.store.run(list_work.give_back(self.keys, self._consumer, jobs))

    def report(self, figures: dict[str, Any]) -> None:
        life = max(1000, round(self._terms.heartbeat * REPORT_LIVES * 1000))
        now = self._keeper_store.now_ms()
        body = to_json({"worker": self._terms.worker_id, "at": now, **figures}, field="report")
        calls: list[Command[Any]] = [
            *locks.report_worker(self.keys, self._terms.worker_id, body, now_ms=now, life_ms=life)
        ]
        if self._consumer:
            calls.append(
                list_work.keep(
                    self.keys, (), lock_ms=self._terms.lock_ms, now_ms=now, consumer=self._consumer
                )
            )
        for answer in self._keeper_store.run_many(calls):
            if isinstance(answer, TorilError):
                raise answer


def _digest(text: bytes) -> str:
    """A name for a message that has none."""
    return hashlib.sha256(text).hexdigest()[:16]


def _seconds_until(due_ms: int, now_ms: int) -> float | None:
    return None if due_ms < 0 else max(0.0, (due_ms - now_ms) / 1000)
