"""The calls of a BullMQ worker that settle outcomes and fetch jobs.

Guarantee: a call is prepared, sent, checked and completed, always in this order. It needs a task only where the server
must be asked in between: for an expired lock, after a lost reply, before a scheduler advances.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from toril.backends._bullmq_delivery import BullmqConfig, BullmqDelivery, LockTokens
from toril.backends._call_tasks import CallTasks
from toril.backends._lost_replies import LostReplies
from toril.backends._outcome_encoding import OutcomeEncoder, ms, requeue_settlement
from toril.backends._scheduler_runs import SchedulerRuns
from toril.backends.base import Fetched, FinishedJob, OnReply
from toril.commands import locks, manage, read, worker
from toril.commands.worker import FetchReply, GroupLimitsNote, Pickup, Settlement
from toril.errors import (
    Interrupted,
    LockLapsed,
    LockMissing,
    RedisOutOfMemory,
    RedisUnavailable,
    ReplyLost,
    ScriptRefused,
    TorilError,
)
from toril.protocol.keys import QueueKeys
from toril.protocol.outcome import Postponed, RateLimited, WaitingForChildren
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport

# A handler that waits for children without having any must not run in a tight loop.
NO_CHILDREN_DELAY = 1.0

Finished: TypeAlias = Sequence[FinishedJob[BullmqDelivery]]
AckErrors: TypeAlias = list[TorilError | None]


@dataclass(slots=True)
class _Call:
    """One call. A settlement is None for what another script has settled, and an error for what it refused."""

    finished: Finished
    capacity: int
    on_reply: OnReply[BullmqDelivery]
    pickup: Pickup
    settlements: list[Settlement | TorilError | None]
    found: Sequence[BullmqDelivery] = ()  # jobs of pickups whose replies were lost
    lost: frozenset[BullmqDelivery] = frozenset()  # their locks expired and belong to others by now
    pause: float = 0.0
    now_ms: int = 0
    has_group_limits: bool = False
    has_more: bool = False  # whether another fetch may return jobs at once

    def ack_errors(self, replies: AckErrors) -> AckErrors:
        """An ack error or None for each outcome, from those of the settlements that were sent."""
        if len(replies) == len(self.settlements):
            return replies
        left = iter(replies)
        return [next(left) if isinstance(one, Settlement) else one for one in self.settlements]


class BullmqCalls:
    """Submits calls for one worker."""

    def __init__(
        self,
        keys: QueueKeys,
        transport: AsyncTransport,
        config: BullmqConfig,
        tokens: LockTokens,
        scheduler_runs: SchedulerRuns,
    ) -> None:
        self._keys = keys
        self._transport = transport
        self._config = config
        self._tokens = tokens
        self._encoder = OutcomeEncoder(config)
        self._lost_replies = LostReplies(keys, transport)
        self._expired: set[BullmqDelivery] = set()  # outcomes refused because the lock had expired
        self._scheduler_runs = scheduler_runs
        self._has_group_limits = False  # whether a fetch found limits of groups
        self.tasks = CallTasks()

    def submit(self, finished: Finished, capacity: int, on_reply: OnReply[BullmqDelivery]) -> None:
        pickup = self.new_pickup()
        settlements: list[Settlement | TorilError | None] = [
            self._encoder.settlement_of(one.delivery, one.outcome, pickup) for one in finished
        ]
        call = _Call(finished, capacity, on_reply, pickup, settlements)
        if None in settlements or self._is_pending():
            self.tasks.spawn(self._prepare_and_send(call))
        else:
            self._send(call)

    def new_pickup(self) -> Pickup:
        config = self._config
        return Pickup(
            token=self._tokens.next(),
            lock_ms=config.lock_ms,
            worker=config.worker_id,
            limiter=config.limiter,
        )

    def _is_pending(self) -> bool:
        """Whether something must be asked or sent before the next call."""
        return bool(
            self._scheduler_runs or self._lost_replies or self._expired or self._transport.clock.stale
        )

    # --- prepare ----------------------------------------------------------------------------------------------

    async def _prepare_and_send(self, call: _Call) -> None:
        try:
            await self._prepare(call)
            self._send(call)
        except asyncio.CancelledError:
            self._fail(call, Interrupted("the call was interrupted"))
            raise
        except Exception as error:  # noqa: BLE001  # the caller submits the outcomes again
            self._fail(call, error)

    async def _prepare(self, call: _Call) -> None:
        if self._scheduler_runs:
            # Before anything is settled: the series of a scheduler must not end with the job that is settled.
            await self._scheduler_runs.run_pending()
        call.found = await self._lost_replies.find_jobs(call.capacity)
        call.pause = await self._hold_rate(call.finished)
        if self._expired:
            call.lost = await self._renew_expired(call.finished)
        for i, one in enumerate(call.finished):
            if one.delivery in call.lost:
                call.settlements[i] = LockMissing(one.delivery.id, command="extendLocks")
            elif call.settlements[i] is None:
                call.settlements[i] = await self._special_settlement(one, call.pickup)
        await self._transport.now_ms()

    async def _hold_rate(self, finished: Finished) -> float:
        """Stops workers that have a rate limit, as upstream does; without one, only this worker pauses."""
        spans = [one.outcome.delay for one in finished if isinstance(one.outcome, RateLimited)]
        if not spans:
            return 0.0
        longest = max((span for span in spans if span is not None), default=0.0)
        if longest > 0:
            await self._transport.run(manage.start_rate_limit(self._keys, max(1, ms(longest))))
        if self._config.limiter is not None:
            return 0.0
        # An error without a time means the hold that is set already.
        return longest or max(0, await self._transport.run(read.get_rate_limit_ms(self._keys))) / 1000

    async def _renew_expired(self, finished: Finished) -> frozenset[BullmqDelivery]:
        """Renews expired locks; returns those that belong to another worker by now, or whose jobs were swept."""
        expired = [one.delivery for one in finished if one.delivery in self._expired]
        if not expired:
            return frozenset()
        # Of two deliveries of one job, the older one has lost its lock for certain.
        newest = {one.id: one for one in expired}
        held = [one.lock for one in newest.values()]
        gone = await self._transport.run(locks.extend_locks(self._keys, held, lock_ms=self._config.lock_ms))
        self._expired.difference_update(expired)
        return frozenset(one for one in expired if one.id in gone or newest[one.id] is not one)

    async def _special_settlement(
        self, one: FinishedJob[BullmqDelivery], pickup: Pickup
    ) -> Settlement | TorilError | None:
        """Settles what needs a script of its own; returns what is left to settle."""
        if isinstance(one.outcome, WaitingForChildren):
            return None if one.outcome.moved else await self._wait_for_children(one.delivery, pickup)
        return requeue_settlement(one.delivery)

    async def _wait_for_children(
        self, delivery: BullmqDelivery, pickup: Pickup
    ) -> Settlement | TorilError | None:
        """Moves the job if a child is pending. Else the job runs again soon: its last child may just have ended."""
        now = await self._transport.now_ms()
        command = worker.move_to_waiting_children(self._keys, delivery.id, token=delivery.token, now_ms=now)
        try:
            moved = await self._transport.run(command)
        except ScriptRefused as refused:
            return refused
        finally:
            self._lost_replies.add_finish(delivery.id)
        return None if moved else self._encoder.settlement_of(delivery, Postponed(NO_CHILDREN_DELAY), pickup)

    # --- send ---------------------------------------------------------------------------------------------------

    def _send(self, call: _Call) -> None:
        call.now_ms = self._transport.clock.now_ms()
        call.has_group_limits = self._has_group_limits
        settlements = [one for one in call.settlements if isinstance(one, Settlement)]
        command = worker.settle(
            self._keys,
            settlements,
            capacity=0 if call.pause else call.capacity - len(call.found),
            pickup=call.pickup,
            now_ms=call.now_ms,
            has_group_limits=call.has_group_limits,
        )
        forwarder = self._config.forwarder
        if forwarder is not None:
            records = {one.delivery.id: one.delivery.record for one in call.finished}
            command = forwarder.forwarding(command, settlements, records, call.now_ms)
        self._transport.submit(command, functools.partial(self._replied, call))

    def _fail(self, call: _Call, error: Exception) -> None:
        self._lost_replies.forget_jobs(call.found)
        call.on_reply(error)

    # --- check and complete -------------------------------------------------------------------------------------

    def _replied(self, call: _Call, reply: FetchReply | TorilError) -> None:
        if isinstance(reply, TorilError):
            if isinstance(reply, ReplyLost):
                self._lost_replies.add(call.finished, call.pickup.token)
            self._fail(call, reply)
            return
        note = reply.group_limits
        if note is not None and self._fetch_on(call, reply, note):
            return
        ack_errors = call.ack_errors(reply.ack_errors)
        unclear = self._lost_replies.unclear(call.finished, ack_errors) if self._lost_replies else ()
        if unclear:
            self.tasks.spawn(self._check_and_complete(call, reply, ack_errors, unclear))
        else:
            self._complete(call, reply, ack_errors)

    def _fetch_on(self, call: _Call, reply: FetchReply, note: GroupLimitsNote) -> bool:
        """Fetches with the limits of groups what was not fetched without them, or not looked at yet.

        Returns whether another call was sent, whose reply completes this one.
        """
        self._has_group_limits = note is not GroupLimitsNote.NONE
        missing = 0 if call.pause else call.capacity - len(call.found) - len(reply.jobs)
        call.has_more = note is GroupLimitsNote.MORE or not call.has_group_limits
        # After a lost reply, jobs are found by the token of their call: those of two replies need two calls.
        if not call.has_more or missing <= 0 or reply.fetch_error or reply.jobs:
            return False
        call.has_group_limits = True
        command = worker.settle(
            self._keys,
            [],
            capacity=missing,
            pickup=call.pickup,
            now_ms=self._transport.clock.now_ms(),
            has_group_limits=True,
        )
        self._transport.submit(command, functools.partial(self._fetched_on, call, reply))
        return True

    def _fetched_on(self, call: _Call, first: FetchReply, further: FetchReply | TorilError) -> None:
        if isinstance(further, TorilError):
            if isinstance(further, ReplyLost):
                self._lost_replies.add((), call.pickup.token)
            # What the first call settled is settled; the next call tells more about the server.
            self._replied(call, dataclasses.replace(first, group_limits=None))
            return
        self._replied(call, dataclasses.replace(further, ack_errors=first.ack_errors))

    async def _check_and_complete(
        self, call: _Call, reply: FetchReply, ack_errors: AckErrors, unclear: Sequence[int]
    ) -> None:
        try:
            for i in unclear:
                if await self._lost_replies.was_accepted(call.finished[i]):
                    ack_errors[i] = None
        except (Exception, asyncio.CancelledError) as error:
            # What had been accepted before is still unknown. The jobs that were fetched are found by their token.
            self._lost_replies.add(call.finished, call.pickup.token)
            if isinstance(error, asyncio.CancelledError):
                self._fail(call, Interrupted("the call was interrupted"))
                raise
            self._fail(call, error)
            return
        self._complete(call, reply, ack_errors)

    def _complete(self, call: _Call, reply: FetchReply, ack_errors: AckErrors) -> None:
        if any(ack_errors):
            self._note_expired(call, ack_errors)
        self._lost_replies.forget_settled(call.finished, ack_errors)
        token = call.pickup.token
        fetched = [BullmqDelivery(JobRecord.from_flat(job_id, flat), token) for job_id, flat in reply.jobs]
        deliveries = [*call.found, *fetched] if call.found else fetched
        self._scheduler_runs.begin(one.record for one in deliveries)
        due = reply.next_at_ms
        call.on_reply(
            Fetched(
                deliveries=deliveries,
                ack_errors=ack_errors,
                limited_for=call.pause or reply.limited_ms / 1000,
                next_due_in=(due - self._transport.clock.now_ms()) / 1000 if due else None,
                exhausted=not call.has_more,
                refused=_refused(reply.fetch_error) if reply.fetch_error else None,
                at_ms=call.now_ms,
            )
        )

    def _note_expired(self, call: _Call, ack_errors: AckErrors) -> None:
        """An outcome that was refused for an expired lock is submitted again: the lock is renewed first."""
        for i, (one, ack_error) in enumerate(zip(call.finished, ack_errors, strict=True)):
            delivery = one.delivery
            if isinstance(ack_error, LockMissing) and delivery not in call.lost and not delivery.lock_lost:
                self._expired.add(delivery)
                ack_errors[i] = LockLapsed(delivery.id, command=ack_error.command)


def _refused(text: str) -> TorilError:
    return RedisOutOfMemory(text) if "OOM" in text else RedisUnavailable(text)
