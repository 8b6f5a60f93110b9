"""The list kind as a source: envelopes leave the list as they are taken, under a lock for each job.

Guarantee: at most once; a graceful stop loses nothing, because waiting takes no job and what is in hand goes back. With
reliable pickup at least once: a taken job stands in its worker's own list until it is settled, and goes back to the
queue when that worker has not been seen for the length of a lock.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.backends._envelope_backend import EnvelopeBackend, EnvelopeConfig
from toril.backends.base import Promise
from toril.backends.envelopes import EnvelopeDelivery, read_envelope
from toril.commands import list_worker
from toril.commands.command import Command
from toril.commands.envelope_settle import Settlement
from toril.commands.list_worker import ListFetchReply, ListPickup, UnrenewedLocks
from toril.protocol.keys import ListKeys
from toril.transport import AsyncTransport, BlockingTransport

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
RECOVERED_PER_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig(EnvelopeConfig):
    """How a worker takes and keeps jobs."""

    consumer: str  # names the worker's own list; must not be reused by another process
    reliable: bool = False
    lock_ms: int = 30_000


class ListBackend(EnvelopeBackend[ListKeys, ListConfig, ListFetchReply]):
    """One list queue, seen by one worker."""

    kind = "list"

    def __init__(
        self,
        keys: ListKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        terms: ListConfig,
    ) -> None:
        super().__init__(keys, transport, renewer_transport, terms)
        self.promise: Promise = "at least once" if terms.reliable else "at most once"
        self._consumer = terms.consumer if terms.reliable else ""
        self._unknown: set[bytes] = set()  # texts in our own list that we did not know at the last sweep

    async def _leave(self) -> None:
        if self._consumer and not await self.transport.run(
            list_worker.count_processing(self.keys, self._consumer)
        ):
            await self.transport.run_many(list_worker.remove_consumer(self.keys, self._consumer))

    async def _run(self, settlements: Sequence[Settlement], take: int, now_ms: int) -> ListFetchReply:
        pickup = ListPickup(token=str(uuid.uuid4()), lock_ms=self._terms.lock_ms, consumer=self._consumer)
        harvest = await self.transport.run(
            list_worker.settle(self.keys, settlements, capacity=take, pickup=pickup, now_ms=now_ms), firm=True
        )
        if self._consumer and harvest.jobs:
            # It has left before a handler begins: a job that takes its worker down must not be spared.
            self.transport.submit(
                list_worker.confirm_pickup(self.keys, self._consumer, pickup.token), lambda _: None
            )
        return harvest

    def _more_waits(self, harvest: ListFetchReply) -> bool:
        return harvest.left > 0

    def _wait_command(self, timeout: float) -> Command[bool]:
        return list_worker.wait_for_job(self.keys, timeout)

    def _name_of(self, text: bytes, reference: bytes | str) -> str:  # noqa: ARG002
        return _digest(text)

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        lost: set[str] = set()
        now = self._renewer_transport.now_ms()
        for start in range(0, len(deliveries), LOCKS_PER_CALL):
            part = deliveries[start : start + LOCKS_PER_CALL]
            kept = self._renewer_transport.run(self._keep([(one.id, str(one.fence)) for one in part], now))
            lost |= kept.lost
            if kept.expired:
                lost |= self._retake([one for one in part if one.id in kept.expired])
        return [one for one in deliveries if one.id in lost]

    def _retake(self, unlocked: Sequence[EnvelopeDelivery]) -> set[str]:
        """Those that are not ours any more: settled meanwhile, or another's; the others are locked again."""
        ours = [one for one in unlocked if self._in_hand.get(one.reference) is one]
        lost = {one.id for one in unlocked} - {one.id for one in ours}
        if not ours:
            return lost
        jobs = [(one.id, str(one.fence), one.text) for one in ours]
        refused = self._renewer_transport.run(
            list_worker.retake(self.keys, jobs, lock_ms=self._terms.lock_ms, consumer=self._consumer)
        )
        return lost | refused

    def _keep(self, held: Sequence[tuple[str, str]], now_ms: int) -> Command[UnrenewedLocks]:
        return list_worker.renew(
            self.keys, held, lock_ms=self._terms.lock_ms, now_ms=now_ms, consumer=self._consumer
        )

    def _signs_of_life(self, now_ms: int) -> list[Command[Any]]:
        return [self._keep((), now_ms)] if self._consumer else []

    async def sweep(self) -> list[str]:
        """Nothing to recover when a job leaves the list for good; with reliable pickup, what dead workers had."""
        if not self._consumer:
            return []
        asked = time.monotonic()
        await self._give_back_unknown()
        if time.monotonic() - asked >= self._terms.heartbeat:
            return []  # a server that hung for so long has let living workers look silent
        now_ms, recovered, more = await self.transport.now_ms(), list[str](), True
        while more:
            texts, more = await self.transport.run(
                list_worker.recover(
                    self.keys,
                    consumer=self._consumer,
                    now_ms=now_ms,
                    silence_ms=self._terms.lock_ms,
                    limit=RECOVERED_PER_CALL,
                )
            )
            recovered += (read_envelope(text, _digest(text))[0].job_id for text in texts)
        return recovered

    async def _give_back_unknown(self) -> None:
        """Jobs that a lost reply brought: they stand in our own list, and twice in a row we do not know of them."""
        texts = await self.transport.run(list_worker.processing_envelopes(self.keys, self._consumer))
        known = {*self._in_hand, *self._owing()}
        unknown = {text for text in texts if text not in known}
        twice, self._unknown = unknown & self._unknown, unknown
        if twice:
            jobs = [(read_envelope(text, "")[0].job_id, text) for text in twice]
            await self.transport.run(list_worker.give_back(self.keys, self._consumer, jobs))


def _digest(text: bytes) -> str:
    """A name for a message that has none."""
    return hashlib.sha256(text).hexdigest()[:16]
