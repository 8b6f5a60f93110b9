"""The backend of list queues: a fetch removes envelopes from the list and sets a lock for each job.

Guarantee: at most once; a graceful stop loses nothing, because waiting fetches no job and unfinished jobs are returned.
With reliable pickup at least once: a fetched job is in its worker's own list until it is settled, and returns to the
queue when that worker has not renewed its locks for the duration of a lock.
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
from toril.errors import TorilError
from toril.protocol.keys import ListKeys
from toril.transport import AsyncTransport, BlockingTransport

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
RECOVERED_PER_CALL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig(EnvelopeConfig):
    """How a worker fetches jobs and renews their locks."""

    consumer: str  # the name of the worker's own list; no other process may use it
    reliable: bool = False
    lock_ms: int = 30_000


class ListBackend(EnvelopeBackend[ListKeys, ListConfig, ListFetchReply]):
    """One list queue, used by one worker."""

    kind = "list"

    def __init__(
        self,
        keys: ListKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        config: ListConfig,
    ) -> None:
        super().__init__(keys, transport, renewer_transport, config)
        self.promise: Promise = "at least once" if config.reliable else "at most once"
        self._consumer = config.consumer if config.reliable else ""
        self._unknown: set[bytes] = set()  # texts in our own list without a delivery at the last sweep

    async def _deregister(self) -> None:
        if self._consumer and not await self.transport.run(
            list_worker.count_processing(self.keys, self._consumer)
        ):
            await self.transport.run_many(list_worker.remove_consumer(self.keys, self._consumer))

    def _settle_command(
        self, settlements: Sequence[Settlement], take: int, now_ms: int
    ) -> Command[ListFetchReply]:
        pickup = ListPickup(token=str(uuid.uuid4()), lock_ms=self._config.lock_ms, consumer=self._consumer)
        return list_worker.settle(self.keys, settlements, capacity=take, pickup=pickup, now_ms=now_ms)

    def _note_reply(self, reply: ListFetchReply) -> None:
        if self._consumer and reply.jobs:
            # Sent before a handler begins: a job that kills its worker must use up an attempt.
            begin = list_worker.confirm_pickup(self.keys, self._consumer, str(reply.jobs[0].fence))
            self.transport.submit(begin, _ignore)

    def _has_more(self, reply: ListFetchReply) -> bool:
        return reply.left > 0

    async def _count_waiting(self) -> int:
        return await self.transport.run(list_worker.count_waiting(self.keys))

    def _wait_command(self, timeout: float) -> Command[bool]:
        return list_worker.wait_for_job(self.keys, timeout)

    def _id_of(self, text: bytes, _reference: bytes | str, /) -> str:
        return _digest(text)

    # --- renewing and sweeping ------------------------------------------------------------------------------

    def renew_locks(self, deliveries: Sequence[EnvelopeDelivery]) -> list[EnvelopeDelivery]:
        lost: set[str] = set()
        now = self._renewer_transport.now_ms()
        for start in range(0, len(deliveries), LOCKS_PER_CALL):
            part = deliveries[start : start + LOCKS_PER_CALL]
            renewal = self._renewer_transport.run(
                self._renew_command([(one.id, str(one.fence)) for one in part], now)
            )
            lost |= renewal.lost
            if renewal.expired:
                lost |= self._renew_expired([one for one in part if one.id in renewal.expired])
        return [one for one in deliveries if one.id in lost]

    def _renew_expired(self, expired: Sequence[EnvelopeDelivery]) -> set[str]:
        """Renews expired locks; returns the ids of jobs that were settled meanwhile or belong to another worker."""
        ours = [one for one in expired if self._deliveries.get(one.reference) is one]
        lost = {one.id for one in expired} - {one.id for one in ours}
        if not ours:
            return lost
        jobs = [(one.id, str(one.fence), one.text) for one in ours]
        refused = self._renewer_transport.run(
            list_worker.retake(self.keys, jobs, lock_ms=self._config.lock_ms, consumer=self._consumer)
        )
        return lost | refused

    def _renew_command(self, held: Sequence[tuple[str, str]], now_ms: int) -> Command[UnrenewedLocks]:
        return list_worker.renew(
            self.keys, held, lock_ms=self._config.lock_ms, now_ms=now_ms, consumer=self._consumer
        )

    def _report_commands(self, now_ms: int) -> list[Command[Any]]:
        return [self._renew_command((), now_ms)] if self._consumer else []

    async def sweep(self) -> list[str]:
        """With reliable pickup, returns jobs of dead workers to the queue; without it there is nothing to recover."""
        if not self._consumer:
            return []
        started = time.monotonic()
        await self._return_unknown()
        if time.monotonic() - started >= self._config.heartbeat:
            return []  # while the server hung, live workers could not renew their locks
        now_ms, recovered, more = await self.transport.now_ms(), list[str](), True
        while more:
            texts, more = await self.transport.run(
                list_worker.recover(
                    self.keys,
                    consumer=self._consumer,
                    now_ms=now_ms,
                    silence_ms=self._config.lock_ms,
                    limit=RECOVERED_PER_CALL,
                )
            )
            recovered += (read_envelope(text, _digest(text))[0].job_id for text in texts)
        return recovered

    async def _return_unknown(self) -> None:
        """Returns jobs whose reply was lost: they are in our own list and, twice in a row, have no delivery."""
        texts = await self.transport.run(list_worker.processing_envelopes(self.keys, self._consumer))
        known = {*self._deliveries, *(one.reference for one in self._unwritten.all())}
        unknown = {text for text in texts if text not in known}
        twice, self._unknown = unknown & self._unknown, unknown
        if twice:
            jobs = [(read_envelope(text, "")[0].job_id, text) for text in twice]
            await self.transport.run(list_worker.give_back(self.keys, self._consumer, jobs))


def _ignore(reply: int | TorilError) -> None:
    """The next sweep repairs what a lost command leaves."""


def _digest(text: bytes) -> str:
    """An id for a message that has none."""
    return hashlib.sha256(text).hexdigest()[:16]
