"""The BullMQ kind as a source: outcomes become settlements of the official scripts, job hashes become deliveries.

Guarantee: what Node would write for the same outcome is written, at least once and accepted once: a finish whose reply
was lost is handed in again, and one that had been accepted is recognised by the job's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from toril.backends._bullmq_delivery import BullmqConfig, BullmqDelivery, LockTokens
from toril.backends._lost_replies import LostReplies
from toril.backends._outcome_encoding import OutcomeEncoder, given_back, ms, record_after
from toril.backends._scheduler_runs import Series
from toril.backends.base import Fetched, FinishedJob, Promise
from toril.commands import locks, manage, read, worker
from toril.commands.locks import Sweep
from toril.commands.worker import Pickup, Settlement
from toril.errors import (
    LockLapsed,
    LockMissing,
    RedisOutOfMemory,
    RedisUnavailable,
    ReplyLost,
    ScriptRefused,
    TorilError,
)
from toril.protocol.codec import to_json
from toril.protocol.keys import QueueKeys, client_name
from toril.protocol.outcome import Postponed, RateLimited, WaitingForChildren
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport, BlockingTransport
from toril.transport import Reader as StoreReader

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
SUSPECTS_PER_STEP = 500
# A handler that asks to wait for children without any must not run in a tight loop.
NO_CHILDREN_PAUSE = 1.0
# A report outlives two missed heartbeats.
REPORT_LIVES = 3


class BullmqBackend:
    """One BullMQ queue, seen by one worker."""

    kind = "bullmq"
    promise: Promise = "at least once"

    def __init__(
        self,
        keys: QueueKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        terms: BullmqConfig,
        on_broken_scheduler: Callable[[], Any] | None = None,
    ) -> None:
        self.keys = keys
        self.transport = transport
        self._renewer_transport = renewer_transport
        self._terms = terms
        self._reader: StoreReader | None = None
        self._tokens = LockTokens()
        self._settlements = OutcomeEncoder(terms)
        self._doubt = LostReplies(keys, transport)
        self._lapsed: set[BullmqDelivery] = set()  # outcomes refused because the lock had run out
        self.known_names: frozenset[str] = frozenset()
        self._called = False  # whether the last wait ended by a marker
        self._series = Series(keys, transport, on_broken_scheduler)

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        # Damaged scripts are found here, not by the first job.
        worker.settle(self.keys, [], capacity=0, pickup=self._new_pickup(), now_ms=0)
        await self.transport.connect()
        if self._terms.events_max_len is not None:
            await self.transport.run_many(
                manage.set_meta(self.keys, events_max_len=self._terms.events_max_len)
            )
        if self._reader is None:
            self._reader = self.transport.open_reader(
                name=client_name(self.keys, "worker", self._terms.worker_id)
            )
        # A worker that always finds work never waits, yet its name must stand in the list of connections.
        await self._reader.run(worker.has_marker(self.keys), 0)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        await self.transport.close()

    # --- settle and take ------------------------------------------------------------------------------------

    async def exchange(self, settled: Sequence[FinishedJob], room: int) -> Fetched:
        if self._series:
            # Before anything is settled: a series must not end with the job in hand.
            await self._series.go_on()
        adopted = await self._doubt.adopt(room)
        try:
            return await self._exchange(settled, room, adopted)
        except BaseException:
            self._doubt.disown(adopted)
            raise

    async def _exchange(
        self, settled: Sequence[FinishedJob], room: int, adopted: list[BullmqDelivery]
    ) -> Fetched:
        pause = await self._hold_rate(settled)
        pickup = self._new_pickup()
        lost = await self._retake(settled) if self._lapsed else frozenset()
        settlements = [
            LockMissing(one.delivery.id, command="extendLocks")
            if one.delivery in lost
            else await self._settlement(one, pickup)
            for one in settled
        ]
        now = await self.transport.now_ms()
        call = worker.settle(
            self.keys,
            [one for one in settlements if isinstance(one, Settlement)],
            capacity=0 if pause else room - len(adopted),
            pickup=pickup,
            now_ms=now,
        )
        try:
            harvest = await self.transport.run(call, firm=True)
        except ReplyLost:
            self._doubt.begin(settled, pickup.token)
            raise
        try:
            ack_errors = await self._doubt.ack_errors(settled, settlements, harvest.ack_errors)
        except RedisUnavailable:
            # What had been accepted before could not be told. What was taken now is found again by its token.
            self._doubt.begin(settled, pickup.token)
            raise
        self._note_lapsed(settled, ack_errors, lost)
        self._doubt.let_go(settled, ack_errors)
        taken = self._taken(harvest, pickup.token, adopted, ack_errors, now)
        if pause:
            taken = replace(taken, limited_for=pause)
        await self._series.begin(one.record for one in taken.deliveries)
        return taken

    def post(
        self, settled: Sequence[FinishedJob], room: int, answer: Callable[[Fetched | TorilError], None]
    ) -> bool:
        """`exchange` for ordinary outcomes on a connection that stands: no task, and the answer in the turn it comes.

        False, and nothing is done, when something must be asked or said first.
        """
        if self._series or self._doubt or self._lapsed or self.transport.clock.stale:
            return False
        pickup = self._new_pickup()
        words = [self._settlements.of(one.delivery, one.outcome, pickup) for one in settled]
        settlements = [one for one in words if isinstance(one, Settlement)]
        if len(settlements) < len(settled):
            return False
        now = self.transport.clock.now_ms()
        call = worker.settle(self.keys, settlements, capacity=room, pickup=pickup, now_ms=now)

        def harvested(harvest: worker.FetchReply | TorilError) -> None:
            if isinstance(harvest, TorilError):
                if isinstance(harvest, ReplyLost):
                    self._doubt.begin(settled, pickup.token)
                return answer(harvest)
            if any(harvest.ack_errors):
                self._note_lapsed(settled, harvest.ack_errors)
            self._doubt.let_go(settled, harvest.ack_errors)
            taken = self._taken(harvest, pickup.token, [], harvest.ack_errors, now)
            self._series.plan(one.record for one in taken.deliveries)
            self._series.post()
            return answer(taken)

        self.transport.submit(call, harvested)
        return True

    async def _retake(self, settled: Sequence[FinishedJob]) -> frozenset[BullmqDelivery]:
        """Takes back locks that ran out; those that are another's by now, or whose jobs were swept."""
        lapsed: list[BullmqDelivery] = [one.delivery for one in settled if one.delivery in self._lapsed]
        if not lapsed:
            return frozenset()
        # Of a job that is in hand twice, the older delivery has lost its lock for certain.
        newest = {one.id: one for one in lapsed}
        held = [one.lock for one in newest.values()]
        gone = await self.transport.run(locks.extend_locks(self.keys, held, lock_ms=self._terms.lock_ms))
        self._lapsed.difference_update(lapsed)
        return frozenset(one for one in lapsed if one.id in gone or newest[one.id] is not one)

    def _note_lapsed(
        self,
        settled: Sequence[FinishedJob],
        ack_errors: list[TorilError | None],
        lost: frozenset[BullmqDelivery] = frozenset(),
    ) -> None:
        """An outcome that was refused for a lock that ran out is asked for again: the lock is retaken first."""
        for i, (one, ack_error) in enumerate(zip(settled, ack_errors, strict=True)):
            delivery = one.delivery
            if isinstance(ack_error, LockMissing) and delivery not in lost and not delivery.lock_lost:
                self._lapsed.add(delivery)
                ack_errors[i] = LockLapsed(delivery.id, command=ack_error.command)

    def _new_pickup(self) -> Pickup:
        return Pickup(
            token=self._tokens.next(),
            lock_ms=self._terms.lock_ms,
            worker=self._terms.worker_id,
            limiter=self._terms.limiter,
        )

    def _taken(
        self,
        harvest: worker.FetchReply,
        token: str,
        adopted: list[BullmqDelivery],
        ack_errors: list[TorilError | None],
        at_ms: int,
    ) -> Fetched:
        fresh = [BullmqDelivery(JobRecord.from_flat(job_id, flat), token) for job_id, flat in harvest.jobs]
        due = harvest.next_at_ms
        return Fetched(
            deliveries=[*adopted, *fresh],
            ack_errors=ack_errors,
            limited_for=harvest.limited_ms / 1000,
            next_due_in=(due - self.transport.clock.now_ms()) / 1000 if due else None,
            refused=_refused(harvest.fetch_error) if harvest.fetch_error else None,
            at_ms=at_ms,
        )

    async def _settlement(self, one: FinishedJob, pickup: Pickup) -> Settlement | TorilError | None:
        """The words of an outcome; None for what a script of its own has settled, an error for what it refused."""
        words = self._settlements.of(one.delivery, one.outcome, pickup)
        if words is not None:
            return words
        if isinstance(one.outcome, WaitingForChildren):
            return None if one.outcome.moved else await self._park(one.delivery, pickup)
        return given_back(one.delivery)

    async def _park(self, delivery: BullmqDelivery, pickup: Pickup) -> Settlement | TorilError | None:
        """Waits for children if any is pending. Else the job runs again soon: its last child may just have ended."""
        now = await self.transport.now_ms()
        call = worker.move_to_waiting_children(self.keys, delivery.id, token=delivery.token, now_ms=now)
        try:
            parked = await self.transport.run(call)
        except ScriptRefused as refused:
            return refused
        finally:
            self._doubt.finish(delivery.id)
        return None if parked else self._settlements.of(delivery, Postponed(NO_CHILDREN_PAUSE), pickup)

    async def _hold_rate(self, settled: Sequence[FinishedJob]) -> float:
        """Closes the queue to workers with a rate limit, as upstream does; without one, only this worker pauses."""
        spans = [one.outcome.delay for one in settled if isinstance(one.outcome, RateLimited)]
        if not spans:
            return 0.0
        longest = max((span for span in spans if span is not None), default=0.0)
        if longest > 0:
            await self.transport.run(manage.start_rate_limit(self.keys, max(1, ms(longest))))
        if self._terms.limiter is not None:
            return 0.0
        # Without a time of its own, the error means the hold that is set already.
        return longest or max(0, await self.transport.run(read.get_rate_limit_ms(self.keys))) / 1000

    # --- waiting --------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None:
            return
        due_ms = await self._reader.run(worker.wait_for_marker(self.keys, seconds), seconds)
        self._called = due_ms is not None
        if due_ms:
            await self._wait_until(due_ms, seconds)

    async def _wait_until(self, due_ms: float, seconds: float) -> None:
        """The marker told when a delayed job is due: until then, new markers may still come."""
        remaining = (due_ms - self.transport.clock.now_ms()) / 1000
        if remaining > 0 and self._reader is not None:
            timeout = max(0.001, min(remaining, seconds))
            await self._reader.run(worker.wait_for_marker(self.keys, timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def decline(self) -> None:
        if self._called:  # we took the marker, and with it the only word of the work
            await self.transport.run(worker.set_marker(self.keys))

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[BullmqDelivery]) -> list[BullmqDelivery]:
        # A job that we lost and took again is in hand twice: the older of the two has lost its lock for certain.
        newest = {one.id: one for one in deliveries}
        held = [one.lock for one in newest.values()]
        lost: set[str] = set()
        for start in range(0, len(held), LOCKS_PER_CALL):
            part = held[start : start + LOCKS_PER_CALL]
            gone = self._renewer_transport.run(
                locks.extend_locks(self.keys, part, lock_ms=self._terms.lock_ms)
            )
            lost.update(gone)
        return [one for one in deliveries if one.id in lost or newest[one.id] is not one]

    def cancelled(self, deliveries: Sequence[BullmqDelivery]) -> list[tuple[BullmqDelivery, str]]:
        """Those of our jobs that somebody asked to stop, and why. Called from the keeper's thread."""
        words = self._renewer_transport.run(read.get_cancellations(self.keys, [one.id for one in deliveries]))
        pairs = zip(deliveries, words, strict=True)
        # A word is for one attempt: whoever retries a job, or adds its id again, wants it to run.
        asked = [(one, word[1]) for one, word in pairs if word is not None and word[0] == one.token]
        self._renewer_transport.run_many([manage.withdraw_cancel(self.keys, one.id) for one, _ in asked])
        return asked

    async def sweep(self) -> list[str] | None:
        terms, keys = self._terms, self.keys
        started = time.monotonic()
        await self._series.revive()
        now = await self.transport.now_ms()
        sweep = Sweep(self._tokens.next(), ms(terms.heartbeat))
        left = await self.transport.run(
            locks.sweep_begin(keys, now_ms=now, interval_ms=terms.stalled_ms, sweep=sweep)
        )
        # A server that hung for so long has let locks of living workers run out: what is left waits for the next sweep.
        if left < 0 or time.monotonic() - started >= terms.heartbeat:
            return None
        moved: list[str] = []
        while left > 0:
            step = locks.sweep_step(
                keys, max_stalled=terms.max_stalled, suspects=SUSPECTS_PER_STEP, sweep=sweep
            )
            part, left = await self.transport.run(step)
            moved += part
        return moved

    def report(self, figures: dict[str, Any]) -> None:
        life = max(1000, round(self._terms.heartbeat * REPORT_LIVES * 1000))
        now = self._renewer_transport.now_ms()
        body = to_json({"worker": self._terms.worker_id, "at": now, **figures}, field="report")
        names = () if figures.get("state") == "stopped" else self._terms.names
        answers = self._renewer_transport.run_many(
            [
                *locks.report_worker(self.keys, self._terms.worker_id, body, now_ms=now, expire_ms=life),
                *locks.announce_names(self.keys, names, now_ms=now, expire_ms=life),
            ]
        )
        for answer in answers:
            if isinstance(answer, TorilError):
                raise answer
        self.known_names = answers[-1]


def _refused(text: str) -> TorilError:
    return RedisOutOfMemory(text) if "OOM" in text else RedisUnavailable(text)


__all__ = [
    "LOCKS_PER_CALL",
    "SUSPECTS_PER_STEP",
    "BullmqBackend",
    "BullmqConfig",
    "BullmqDelivery",
    "record_after",
]
