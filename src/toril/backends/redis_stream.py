"""The backend of stream queues: entries of a consumer group become deliveries, outcomes settle them.

Guarantee: at least once. An entry stays pending until its outcome is written; entries of a dead consumer are claimed
when they have been idle for long enough; an outcome of a worker that lost its entry changes nothing; an entry that was
trimmed while it was pending is logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from toril.backends._envelope_backend import EnvelopeBackend, EnvelopeConfig
from toril.backends.base import BackendHost, FinishedJob, Promise
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
# Claims of one sweep; when they are not enough, the calls that fetch jobs continue.
CLAIM_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(EnvelopeConfig):
    """How a worker fetches, renews and claims entries."""

    consumer: str  # {hostname}:{pid}:{index}
    concurrency: int
    claim_idle_ms: int = 300_000  # an entry that was not renewed for so long is claimed
    own_idle_ms: int = 30_000  # … for so long, if it is ours and has no delivery
    consumer_idle_ms: int = 3_600_000  # a consumer with nothing pending is removed after so long
    keep: int | None = 10_000  # finished entries that stay readable; None: all


class StreamBackend(EnvelopeBackend[StreamKeys, StreamConfig, StreamFetchReply]):
    """One stream queue, used by one worker."""

    kind = "stream"
    promise: Promise = "at least once"

    def __init__(
        self,
        keys: StreamKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        config: StreamConfig,
        host: BackendHost | None = None,
    ) -> None:
        super().__init__(keys, transport, renewer_transport, config)
        self._host = host
        self._job_ids: set[str] = set()
        self._claimed: deque[EnvelopeDelivery] = deque()
        self._wait_after = "0-0"
        self._cursor = "0-0"
        self._wants_jobs = True  # whether a call since the last sweep had capacity
        self._claiming = False
        self._recovered: list[str] = []  # job ids, for the next sweep to report

    async def _requeue_claimed(self) -> None:
        if self._claimed:
            now_ms = await self.transport.now_ms()
            again = [self._settlement(FinishedJob(one, Requeued()), now_ms) for one in self._claimed]
            self._claimed.clear()
            await self._write(again)

    async def _deregister(self) -> None:
        """Removes our consumer if nothing is pending."""
        config = self._config
        await self.transport.run(
            stream_worker.remove_consumers(
                self.keys, idle_ms=config.consumer_idle_ms, leaving=config.consumer
            )
        )

    def _settle_command(
        self, settlements: Sequence[Settlement], take: int, now_ms: int
    ) -> Command[StreamFetchReply]:
        self._wants_jobs |= take > 0
        config = self._config
        return stream_worker.settle(
            self.keys,
            settlements,
            consumer=config.consumer,
            capacity=take,
            max_length=config.keep,
            now_ms=now_ms,
        )

    def _note_reply(self, reply: StreamFetchReply) -> None:
        last = reply.jobs[-1].reference if reply.jobs else reply.wait_after
        self._wait_after = str(last) if last else self._wait_after

    def _has_more(self, _: StreamFetchReply, /) -> bool:
        return bool(self._claimed) or self._may_recover

    async def _count_waiting(self) -> int:
        self._wants_jobs = True  # only a worker with capacity counts them
        return (await self.transport.run(stream_worker.counts(self.keys))).waiting

    def _count_claimed(self) -> int:
        return len(self._claimed)

    def _wait_command(self, timeout: float) -> Command[bool]:
        return stream_worker.wait_for_entry(self.keys, self._wait_after, timeout)

    async def wait(self, seconds: float) -> None:
        if not self._claimed:
            await super().wait(seconds)

    # --- deliveries -----------------------------------------------------------------------------------------

    def _register(self, delivery: EnvelopeDelivery) -> None:
        if delivery.id in self._job_ids:  # the same job was added twice: each delivery needs its own id
            delivery.id = f"{delivery.id}#{delivery.reference!s}"
        self._job_ids.add(delivery.id)
        super()._register(delivery)

    def _unregister(self, delivery: EnvelopeDelivery) -> None:
        super()._unregister(delivery)
        self._job_ids.discard(delivery.id)

    def _take_claimed(self, capacity: int) -> list[EnvelopeDelivery]:
        self._wants_jobs |= capacity > 0
        return [self._claimed.popleft() for _ in range(min(capacity, len(self._claimed)))]

    def _put_back_claimed(self, deliveries: Sequence[EnvelopeDelivery]) -> None:
        self._claimed.extendleft(reversed(deliveries))

    # --- renewing and sweeping ------------------------------------------------------------------------------

    def renew_locks(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        held: list[EnvelopeDelivery | Settlement] = [*deliveries, *self._claimed, *self._unwritten.all()]
        lost: set[str] = set()
        for start in range(0, len(held), ENTRIES_PER_CALL):
            part = [(str(one.reference), int(one.fence)) for one in held[start : start + ENTRIES_PER_CALL]]
            gone = self._renewer_transport.run(
                stream_worker.renew(self.keys, part, consumer=self._config.consumer)
            )
            lost |= gone
        return [one for one in deliveries if one.reference in lost]

    async def sweep(self) -> list[str]:
        """Claims entries of dead consumers, as many as there is capacity for.

        When there are more, the calls that fetch jobs continue to claim until all pending entries were checked: free
        capacity is used at once. A worker that is busy or paused claims nothing: others could not claim it.
        """
        config = self._config
        await self.transport.run(stream_worker.remove_consumers(self.keys, idle_ms=config.consumer_idle_ms))
        self._may_recover = True
        wants_jobs, self._wants_jobs = self._wants_jobs, False
        if wants_jobs:
            running = len(self._deliveries) - len(self._claimed)
            await self._recover(config.concurrency - running)
        recovered, self._recovered = self._recovered, []
        if self._claimed:
            await self.wake()
        return recovered

    async def _recover(self, capacity: int) -> None:
        """Claims entries of dead consumers, one call after the other; those that were claimed before count."""
        if self._claiming:
            return
        self._claiming = True
        try:
            for _ in range(CLAIM_ROUNDS):
                unwritten = len(self._unwritten.all())
                most = min(capacity - len(self._claimed) - unwritten, CLAIMS_PER_CALL)
                if most <= 0 or not self._may_recover or not self._may_claim():
                    break
                self._recovered += await self._claim(most)
        finally:
            self._claiming = False

    def _may_claim(self) -> bool:
        return self._host is None or self._host.may_recover()

    async def _claim(self, limit: int) -> list[str]:
        config, now_ms = self._config, await self.transport.now_ms()
        claimed = await self.transport.run(
            stream_worker.claim(
                self.keys,
                consumer=config.consumer,
                idle_ms=config.claim_idle_ms,
                own_idle_ms=config.own_idle_ms,
                cursor=self._cursor,
                limit=limit,
                until_ms=now_ms + to_ms(config.heartbeat),
                unsettled=[str(one.reference) for one in self._unwritten.all()],
                running=[str(one) for one in self._deliveries],
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
        accepted = self._accept(claimed.jobs, now_ms)
        self._claimed.extend(accepted)
        return [one.id for one in accepted]
