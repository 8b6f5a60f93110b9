"""What a worker does not know after a lost reply: which outcomes were accepted, and which jobs were fetched.

Guarantee: an outcome that had been accepted is not reported as refused when it is submitted again; jobs that were
fetched by a call whose reply was lost are found by the call's token, and each is delivered once.
"""

from __future__ import annotations

from collections.abc import Sequence

from toril.backends._bullmq_delivery import BullmqDelivery
from toril.backends.base import FinishedJob
from toril.commands import read
from toril.errors import (
    FailedChildren,
    JobNotFound,
    JobNotInState,
    LockLapsed,
    LockLost,
    PendingChildren,
    TorilError,
)
from toril.protocol.keys import QueueKeys
from toril.protocol.outcome import Completed, Failed
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport


class LostReplies:
    """Outcomes and pickups whose replies were lost. False when there are none."""

    __slots__ = ("_found", "_job_ids", "_keys", "_tokens", "_transport")

    def __init__(self, keys: QueueKeys, transport: AsyncTransport) -> None:
        self._keys = keys
        self._transport = transport
        self._job_ids: set[str] = set()  # of jobs whose outcome may have been accepted
        self._tokens: list[str] = []  # of calls that may have fetched jobs
        self._found: set[tuple[str, str]] = set()  # such jobs that were delivered by now, with their tokens

    def __bool__(self) -> bool:
        return bool(self._job_ids or self._tokens)

    def add(self, finished: Sequence[FinishedJob[BullmqDelivery]], token: str) -> None:
        """The reply was lost: neither the accepted outcomes nor the fetched jobs are known."""
        self._job_ids.update(one.delivery.id for one in finished)
        self._tokens.append(token)

    def add_finish(self, job_id: str) -> None:
        """If the rest of the call fails, this outcome is submitted once more and refused."""
        self._job_ids.add(job_id)

    def forget_settled(
        self, finished: Sequence[FinishedJob[BullmqDelivery]], ack_errors: Sequence[TorilError | None]
    ) -> None:
        """These deliveries have ended, except those whose outcome is submitted again."""
        if self._found:
            for one, ack_error in zip(finished, ack_errors, strict=True):
                if not isinstance(ack_error, (LockLapsed, PendingChildren, FailedChildren)):
                    self._found.discard((one.delivery.id, one.delivery.token))

    # --- outcomes -------------------------------------------------------------------------------------------

    def unclear(
        self, finished: Sequence[FinishedJob[BullmqDelivery]], ack_errors: Sequence[TorilError | None]
    ) -> list[int]:
        """Positions of refused outcomes that may have been accepted before: see `was_accepted`."""
        found = []
        for i, (one, ack_error) in enumerate(zip(finished, ack_errors, strict=True)):
            if one.delivery.id in self._job_ids:
                self._job_ids.discard(one.delivery.id)
                if isinstance(ack_error, (LockLost, JobNotFound, JobNotInState)):
                    found.append(i)
        return found

    async def was_accepted(self, one: FinishedJob[BullmqDelivery]) -> bool:
        """Whether the call whose reply was lost has settled this outcome."""
        ended = await self._transport.run(read.is_finished(self._keys, one.delivery.id))
        match one.outcome:
            case Completed():
                return ended.state in ("completed", "missing")
            case Failed():
                return ended.state in ("failed", "missing")
            case _:
                return await self._transport.run(read.get_state(self._keys, one.delivery.id)) != "active"

    # --- pickups --------------------------------------------------------------------------------------------

    async def find_jobs(self, capacity: int) -> list[BullmqDelivery]:
        """Up to so many jobs that were fetched by calls whose replies were lost."""
        if not self._tokens or not capacity:
            return []
        tokens, self._tokens = set(self._tokens), []
        try:
            found = await self._locked_by(tokens)
        except BaseException:
            self._tokens.extend(tokens)
            raise
        # The others are searched again, until their locks expire and they are recovered as stalled.
        self._tokens.extend({one.token for one in found[capacity:]})
        self._found.update((one.id, one.token) for one in found[:capacity])
        return found[:capacity]

    async def _locked_by(self, tokens: set[str]) -> list[BullmqDelivery]:
        delivered = set(self._found)  # before the search: what is settled meanwhile was active when it began
        ids = await self._transport.run(read.get_ranges(self._keys, ["active"]))
        owners = await self._transport.run_many([read.get_lock(self._keys, one) for one in ids])
        held = zip(ids, owners, strict=True)
        ours = [one for one in held if one[1] in tokens and one not in delivered]
        flats = await self._transport.run_many([read.get_job(self._keys, one) for one, _ in ours])
        return [
            BullmqDelivery(JobRecord.from_flat(one, flat), str(owner))
            for (one, owner), flat in zip(ours, flats, strict=True)
            if not isinstance(flat, Exception)
        ]

    def forget_jobs(self, found: Sequence[BullmqDelivery]) -> None:
        """The call failed before these jobs could be delivered: they are searched again."""
        self._found.difference_update((one.id, one.token) for one in found)
        self._tokens.extend({one.token for one in found})
