"""The stream kind as a source: entries of a consumer group become deliveries, outcomes settle them.

Guarantee: at least once. An entry stays pending until its outcome is written; what a dead consumer had is claimed
when it has been idle for long enough; an outcome of a worker that lost its entry changes nothing; an entry that
somebody trimmed while it was pending is said aloud.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toril.backends._envelope_backend import EnvelopeBackend, EnvelopeConfig
from toril.backends.base import FinishedJob, Promise
from toril.backends.envelopes import EnvelopeDelivery
from toril.commands import stream_worker
from toril.commands.command import Command
from toril.commands.envelope_settle import Settlement
from toril.commands.stream_worker import StreamFetchReply
from toril.protocol.duration import to_ms
from toril.protocol.keys import StreamKeys
from toril.protocol.outcome import Requeued
from toril.transport import AsyncTransport, BlockingTransport

logger = logging.getLogger("toril.worker")

# Bounds of one call: well under the time that other clients of the server notice.
ENTRIES_PER_CALL = 500
CLAIMS_PER_CALL = 100
# Claims of one sweep; when they are not enough, the calls that take jobs go on.
CLAIM_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(EnvelopeConfig):
    """How a worker takes and keeps entries."""

    consumer: str  # {hostname}:{pid}:{index}
    concurrency: int
    claim_idle_ms: int = 300_000  # an entry that nobody renews for so long is claimed
    own_idle_ms: int = 30_000  # … for so long, if it is in our own name and we do not know of it
    consumer_idle_ms: int = 3_600_000  # a consumer with nothing pending is removed after so long
    keep: int | None = 10_000  # finished entries that stay readable; None: all


class StreamBackend(EnvelopeBackend[StreamKeys, StreamConfig, StreamFetchReply]):
    """One stream queue, seen by one worker."""

    kind = "stream"
    promise: Promise = "at least once"

    def __init__(
        self,
        keys: StreamKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        terms: StreamConfig,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(keys, transport, renewer_transport, terms)
        self._may_claim = may_claim  # whether entries of living workers can be told from those of dead ones
        self._job_ids: set[str] = set()
        self._claimed: deque[EnvelopeDelivery] = deque()
        self._wait_after = "0-0"
        self._cursor = "0-0"
        self._hungry = True  # whether jobs were asked for since the last sweep
        self._claiming = False
        self._recovered: list[str] = []  # job ids, for the next sweep to report

    async def _return_stock(self) -> None:
        """Hands back what was claimed and never run."""
        if self._claimed:
            now_ms = await self.transport.now_ms()
            again = [self._settlement(FinishedJob(one, Requeued()), now_ms) for one in self._claimed]
            self._claimed.clear()
            await self._run(again, 0, now_ms)

    async def _leave(self) -> None:
        """Removes our consumer if nothing is pending."""
        await self.transport.run(
            stream_worker.remove_consumers(
                self.keys, idle_ms=self._terms.consumer_idle_ms, leaving=self._terms.consumer
            )
        )

    async def _run(self, settlements: Sequence[Settlement], take: int, now_ms: int) -> StreamFetchReply:
        self._hungry |= take > 0
        terms = self._terms
        harvest = await self.transport.run(
            stream_worker.settle(
                self.keys,
                settlements,
                consumer=terms.consumer,
                capacity=take,
                max_length=terms.keep,
                now_ms=now_ms,
            ),
            firm=True,
        )
        last = harvest.jobs[-1].reference if harvest.jobs else harvest.wait_after
        self._wait_after = str(last) if last else self._wait_after
        return harvest

    def _more_waits(self, harvest: StreamFetchReply) -> bool:  # noqa: ARG002
        return bool(self._claimed) or self._may_recover

    def _wait_command(self, timeout: float) -> Command[bool]:
        return stream_worker.wait_for_entry(self.keys, self._wait_after, timeout)

    async def wait(self, seconds: float) -> None:
        if not self._claimed:
            await super().wait(seconds)

    # --- entries in hand ------------------------------------------------------------------------------------

    def _take_in(self, delivery: EnvelopeDelivery) -> None:
        if (
            delivery.id in self._job_ids
        ):  # the same job was added twice: each delivery needs a name of its own
            delivery.id = f"{delivery.id}#{delivery.reference!s}"
        self._job_ids.add(delivery.id)
        super()._take_in(delivery)

    def _forget(self, delivery: EnvelopeDelivery) -> None:
        super()._forget(delivery)
        self._job_ids.discard(delivery.id)

    def _from_stock(self, room: int) -> list[EnvelopeDelivery]:
        self._hungry |= room > 0
        return [self._claimed.popleft() for _ in range(min(room, len(self._claimed)))]

    def _back_to_stock(self, deliveries: Sequence[EnvelopeDelivery]) -> None:
        self._claimed.extendleft(reversed(deliveries))

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        paying = list(self._paying.values())
        held: list[EnvelopeDelivery | Settlement] = [*deliveries, *self._claimed, *self._unwritten, *paying]
        lost: set[str] = set()
        for start in range(0, len(held), ENTRIES_PER_CALL):
            part = [(str(one.reference), int(one.fence)) for one in held[start : start + ENTRIES_PER_CALL]]
            gone = self._renewer_transport.run(
                stream_worker.renew(self.keys, part, consumer=self._terms.consumer)
            )
            lost |= gone
        return [one for one in deliveries if one.reference in lost]

    async def sweep(self) -> list[str]:
        """Looks for entries of dead consumers, and claims what we have capacity for.

        When there is more, the calls that take jobs go on claiming, as soon as they want some, until all pending
        entries were looked at: capacity that frees is used at once. A worker that is busy or paused claims nothing, it
        would only keep others from it.
        """
        terms = self._terms
        await self.transport.run(stream_worker.remove_consumers(self.keys, idle_ms=terms.consumer_idle_ms))
        self._may_recover = True
        is_idle, self._hungry = self._hungry, False
        if is_idle:
            running = len(self._in_hand) - len(self._claimed)
            await self._recover(terms.concurrency - running)
        recovered, self._recovered = self._recovered, []
        if self._claimed:
            await self.wake()
        return recovered

    async def _recover(self, room: int) -> None:
        """Claims entries of dead consumers, one call after the other; those that we hold already count."""
        if self._claiming:
            return
        self._claiming = True
        try:
            for _ in range(CLAIM_ROUNDS):
                most = min(room - len(self._claimed) - len(self._owing()), CLAIMS_PER_CALL)
                if most <= 0 or not self._may_recover or not self._may_claim():
                    break
                self._recovered += await self._claim(most)
        finally:
            self._claiming = False

    async def _claim(self, room: int) -> list[str]:
        terms, now_ms = self._terms, await self.transport.now_ms()
        claimed = await self.transport.run(
            stream_worker.claim(
                self.keys,
                consumer=terms.consumer,
                idle_ms=terms.claim_idle_ms,
                own_idle_ms=terms.own_idle_ms,
                cursor=self._cursor,
                limit=room,
                until_ms=now_ms + to_ms(terms.heartbeat),
                owed=[str(one) for one in self._owing()],
                running=[str(one) for one in self._in_hand],
            )
        )
        self._cursor = claimed.cursor
        self._may_recover = claimed.more
        for entry_id in claimed.trimmed:
            logger.error(
                "entry %s of %s was trimmed while it was pending: its job is lost; "
                "let only toril trim the stream, or raise `keep`",
                entry_id,
                self.keys.stream,
            )
        admitted = self._admit(claimed.jobs, now_ms)
        self._claimed.extend(admitted)
        return [one.id for one in admitted]
