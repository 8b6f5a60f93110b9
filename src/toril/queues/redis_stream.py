"""The stream kind as a source: entries of a consumer group become deliveries, outcomes settle them.

Guarantee: at least once. An entry stays pending until its outcome is written; what a dead consumer had is claimed
when it has been idle for long enough; an outcome of a worker that lost its entry changes nothing; an entry that
somebody trimmed while it was pending is said aloud.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands import locks, stream_work
from toril.commands.stream_work import StreamEntry, StreamSettlement
from toril.contract.codec import to_json
from toril.contract.errors import LockMissing, ReplyLost, TorilError
from toril.contract.keys import StreamKeys
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
ENTRIES_PER_CALL = 500
CLAIMS_PER_CALL = 100
CLAIM_ROUNDS = 20
# A report outlives two missed heartbeats.
REPORT_LIVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """How a worker takes and keeps entries."""

    worker_id: str
    consumer: str  # {hostname}:{pid}:{index}
    concurrency: int
    claim_idle_ms: int = 300_000  # an entry that nobody renews for so long is claimed
    own_idle_ms: int = 30_000  # … for so long, if it is in our own name and we do not know of it
    consumer_idle_ms: int = 3_600_000  # a consumer with nothing pending is removed after so long
    keep: int | None = 10_000  # finished entries that stay readable; None: all
    heartbeat: float = 15.0  # seconds
    max_attempts: int | None = None
    result_ms: int = 0  # how long results are kept; 0: not at all


class StreamSource:
    """One stream queue, seen by one worker."""

    kind = "stream"
    promise: Promise = "at least once"

    def __init__(
        self, keys: StreamKeys, store: AsyncStore, keeper_store: BlockingStore, terms: StreamTerms
    ) -> None:
        self.keys = keys
        self.store = store
        self._keeper_store = keeper_store
        self._terms = terms
        self._reader: Reader | None = None
        self._in_hand: dict[str, EnvelopeDelivery] = {}  # by entry id
        self._job_ids: set[str] = set()
        self._claimed: deque[EnvelopeDelivery] = deque()
        self._owed: list[StreamSettlement] = []  # dead letters of messages that were never run
        self._in_doubt: set[str] = set()  # entry ids of outcomes whose reply was lost
        self._wait_after = "0-0"
        self._cursor = "0-0"
        self._limited_until = 0.0
        self._hungry = True  # whether jobs were asked for since the last sweep

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
            logger.warning("consumer %s could not say good-bye: %s", self._terms.consumer, error)
        await self.store.close()

    async def _leave(self) -> None:
        """Hands back what was claimed and never run, and removes our consumer if nothing is pending."""
        again = [
            StreamSettlement(
                kind="again", entry_id=one.reference, deliveries=int(one.fence), job_id=one.id, text=one.text
            )
            for one in self._claimed
        ]
        self._claimed.clear()
        if again or self._owed:
            await self._run([*self._owed, *again], 0)
        await self.store.run(
            stream_work.tidy(self.keys, idle_ms=self._terms.consumer_idle_ms, leaving=self._terms.consumer)
        )

    # --- settle and take ------------------------------------------------------------------------------------

    async def exchange(self, settled: Sequence[Settled], room: int) -> Taken:
        now_ms = await self.store.now_ms()
        self._hold_rate(settled)
        limited = max(0.0, self._limited_until - time.monotonic())
        self._hungry |= room > 0 and not limited
        claimed = self._from_claimed(0 if limited else room)
        owed, self._owed = self._owed, []
        settlements = [self._settlement(one, now_ms) for one in settled]
        try:
            harvest = await self._run([*owed, *settlements], 0 if limited else room - len(claimed))
        except ReplyLost:
            self._in_doubt.update(one.entry_id for one in settlements)
            self._claimed.extendleft(reversed(claimed))
            raise
        except BaseException:
            self._owed = owed + self._owed
            self._claimed.extendleft(reversed(claimed))
            raise
        verdicts = [
            self._verdict(one.delivery, answer)
            for one, answer in zip(settled, harvest.verdicts[len(owed) :], strict=True)
        ]
        fresh = self._admit(harvest.entries, now_ms)
        self._learn_position(harvest)
        return Taken(
            deliveries=[*claimed, *fresh],
            verdicts=verdicts,
            limited_for=limited,
            next_due_in=_seconds_until(harvest.next_due_ms, now_ms),
            exhausted=not self._owed and not self._claimed,
            refused=pickup_trouble(harvest.trouble),
        )

    async def _run(self, settlements: Sequence[StreamSettlement], take: int) -> stream_work.StreamHarvest:
        terms = self._terms
        call = stream_work.exchange(
            self.keys,
            settlements,
            consumer=terms.consumer,
            take=take,
            keep=terms.keep,
            now_ms=await self.store.now_ms(),
        )
        return await self.store.run(call)

    def _settlement(self, one: Settled, now_ms: int) -> StreamSettlement:
        delivery: EnvelopeDelivery = one.delivery
        words = words_of(delivery, one.outcome, now_ms, self._terms.result_ms)
        return StreamSettlement(
            kind=words.kind,
            entry_id=delivery.reference,
            deliveries=int(delivery.fence),
            job_id=delivery.envelope.job_id,
            due_ms=words.due_ms,
            text=words.text,
        )

    def _verdict(self, delivery: EnvelopeDelivery, answer: TorilError | None) -> TorilError | None:
        self._forget(delivery)
        if delivery.reference in self._in_doubt:
            self._in_doubt.discard(delivery.reference)
            if isinstance(answer, LockMissing):
                return None  # nothing is pending: the call whose reply was lost had done its work
        return answer

    def _admit(self, entries: Sequence[StreamEntry], now_ms: int) -> list[EnvelopeDelivery]:
        """Deliveries for entries that can be run; the others become dead letters with the next call."""
        admitted = []
        for entry in entries:
            known = self._in_hand.get(entry.entry_id)
            if known is not None:
                known.fence = entry.deliveries  # claimed from ourselves: heartbeats had failed for long
                continue
            envelope, problem = read_envelope(entry.text, entry.entry_id)
            delivery = EnvelopeDelivery(
                envelope,
                entry.text,
                reference=entry.entry_id,
                fence=entry.deliveries,
                silent_deliveries=entry.deliveries - 1,
            )
            words = refusal_of(delivery, problem, self._terms.max_attempts, now_ms)
            if words is None:
                self._take_in(delivery)
                admitted.append(delivery)
            else:
                self._owed.append(
                    StreamSettlement(
                        kind=words.kind,
                        entry_id=entry.entry_id,
                        deliveries=entry.deliveries,
                        job_id=delivery.id,
                        text=words.text,
                    )
                )
        return admitted

    def _take_in(self, delivery: EnvelopeDelivery) -> None:
        if (
            delivery.id in self._job_ids
        ):  # the same job was added twice: each delivery needs a name of its own
            delivery.id = f"{delivery.id}#{delivery.reference}"
        self._job_ids.add(delivery.id)
        self._in_hand[delivery.reference] = delivery

    def _forget(self, delivery: EnvelopeDelivery) -> None:
        self._in_hand.pop(delivery.reference, None)
        self._job_ids.discard(delivery.id)

    def _from_claimed(self, room: int) -> list[EnvelopeDelivery]:
        return [self._claimed.popleft() for _ in range(min(room, len(self._claimed)))]

    def _learn_position(self, harvest: stream_work.StreamHarvest) -> None:
        if harvest.entries:
            self._wait_after = harvest.entries[-1].entry_id
        elif harvest.wait_after:
            self._wait_after = harvest.wait_after

    def _hold_rate(self, settled: Sequence[Settled]) -> None:
        for one in settled:
            if isinstance(one.outcome, RateLimited) and one.outcome.delay:
                self._limited_until = max(self._limited_until, time.monotonic() + one.outcome.delay)

    # --- waiting --------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None or self._claimed or self._owed:
            return
        timeout = min(seconds, LONGEST_WAIT)
        await self._reader.run(stream_work.wait_for_entry(self.keys, self._wait_after, timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def decline(self) -> None:
        """A wait takes nothing, and every waiting worker was told."""

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        held = [*deliveries, *self._claimed]
        lost: set[str] = set()
        for start in range(0, len(held), ENTRIES_PER_CALL):
            part = [(one.reference, int(one.fence)) for one in held[start : start + ENTRIES_PER_CALL]]
            gone = self._keeper_store.run(stream_work.keep(self.keys, part, consumer=self._terms.consumer))
            lost |= gone
        return [one for one in deliveries if one.reference in lost]

    async def sweep(self) -> list[str]:
        """Claims what we have room for; the rest is left to others, or to the next sweep.

        A worker that is busy or paused claims nothing: it would only keep others from it.
        """
        terms = self._terms
        await self.store.run(stream_work.tidy(self.keys, idle_ms=terms.consumer_idle_ms))
        hungry, self._hungry = self._hungry, False
        if not hungry:
            return []
        recovered: list[str] = []
        for _ in range(CLAIM_ROUNDS):
            room = min(terms.concurrency - len(self._in_hand) - len(self._owed), CLAIMS_PER_CALL)
            if room <= 0:
                break
            recovered += await self._claim(room)
            if self._cursor == "0-0":
                break
        if recovered:
            await self.wake()
        return recovered

    async def _claim(self, room: int) -> list[str]:
        terms = self._terms
        claimed = await self.store.run(
            stream_work.claim(
                self.keys,
                consumer=terms.consumer,
                idle_ms=terms.claim_idle_ms,
                own_idle_ms=terms.own_idle_ms,
                cursor=self._cursor,
                limit=room,
                in_hand=list(self._in_hand),
            )
        )
        self._cursor = claimed.cursor
        for entry_id in claimed.trimmed:
            logger.error(
                "entry %s of %s was trimmed while it was pending: its job is lost; "
                "let only toril trim the stream, or raise `keep`",
                entry_id,
                self.keys.stream,
            )
        admitted = self._admit(claimed.entries, await self.store.now_ms())
        self._claimed.extend(admitted)
        return [one.id for one in admitted]

    def report(self, figures: dict[str, Any]) -> None:
        life = max(1000, round(self._terms.heartbeat * REPORT_LIVES * 1000))
        now = self._keeper_store.now_ms()
        body = to_json({"worker": self._terms.worker_id, "at": now, **figures}, field="report")
        call = locks.report_worker(self.keys, self._terms.worker_id, body, now_ms=now, life_ms=life)
        for answer in self._keeper_store.run_many(call):
            if isinstance(answer, TorilError):
                raise answer


def _seconds_until(due_ms: int, now_ms: int) -> float | None:
    return None if due_ms < 0 else max(0.0, (due_ms - now_ms) / 1000)
