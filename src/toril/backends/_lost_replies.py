"""What a worker does not know after a lost reply: which outcomes were accepted, and which jobs were taken for it.

Guarantee: a finish that had been accepted is not told as refused when it is handed in again; jobs that a pickup took
for us and whose names were lost with its reply are found by our token, and each is handed out once.
"""

from __future__ import annotations

from collections.abc import Sequence

from toril.backends._bullmq_delivery import BullmqDelivery
from toril.backends.base import FinishedJob
from toril.commands import read
from toril.commands.worker import Settlement
from toril.errors import (
    FailedChildren,
    JobNotFound,
    JobNotInState,
    LockLapsed,
    LockLost,
    PendingChildren,
    RedisUnavailable,
    TorilError,
)
from toril.protocol.keys import QueueKeys
from toril.protocol.outcome import Completed, Failed
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport


class LostReplies:
    """Finishes and pickups whose replies were lost. False when there are none."""

    __slots__ = ("_adopted", "_finishes", "_keys", "_tokens", "_transport")

    def __init__(self, keys: QueueKeys, transport: AsyncTransport) -> None:
        self._keys = keys
        self._transport = transport
        self._finishes: set[str] = set()  # ids of jobs whose outcome may have been accepted
        self._tokens: list[str] = []  # pickups whose jobs are ours, unseen
        self._adopted: set[tuple[str, str]] = set()  # such jobs that are in hand by now, with their tokens

    def __bool__(self) -> bool:
        return bool(self._finishes or self._tokens)

    def begin(self, settled: Sequence[FinishedJob], token: str) -> None:
        """The reply was lost: we know neither what was accepted nor what was taken."""
        self._finishes.update(one.delivery.id for one in settled)
        self._tokens.append(token)

    def finish(self, job_id: str) -> None:
        """Should the rest of the exchange fail, this job is handed in once more and refused."""
        self._finishes.add(job_id)

    def let_go(self, settled: Sequence[FinishedJob], ack_errors: Sequence[TorilError | None]) -> None:
        """They are no longer in hand, except those whose outcome is handed in again."""
        if self._adopted:
            for one, ack_error in zip(settled, ack_errors, strict=True):
                if not isinstance(ack_error, (LockLapsed, PendingChildren, FailedChildren)):
                    self._adopted.discard((one.delivery.id, one.delivery.token))

    # --- finishes -------------------------------------------------------------------------------------------

    async def ack_errors(
        self,
        settled: Sequence[FinishedJob],
        settlements: Sequence[Settlement | TorilError | None],
        answers: Sequence[TorilError | None],
    ) -> list[TorilError | None]:
        """An answer for each outcome; a refusal of one that had been accepted before is none."""
        remaining = iter(answers)
        ack_errors = [next(remaining) if isinstance(words, Settlement) else words for words in settlements]
        if self._finishes:
            for i, (one, ack_error) in enumerate(zip(settled, ack_errors, strict=True)):
                if one.delivery.id in self._finishes:
                    self._finishes.discard(one.delivery.id)
                    if ack_error is not None and await self._had_been_accepted(one, ack_error):
                        ack_errors[i] = None
        return ack_errors

    async def _had_been_accepted(self, one: FinishedJob, refused: TorilError) -> bool:
        """Whether the first try of a finish, whose reply was lost, did its work after all."""
        if not isinstance(refused, (LockLost, JobNotFound, JobNotInState)):
            return False
        finished = await self._transport.run(read.is_finished(self._keys, one.delivery.id))
        match one.outcome:
            case Completed():
                return finished.state in ("completed", "missing")
            case Failed():
                return finished.state in ("failed", "missing")
            case _:
                return await self._transport.run(read.get_state(self._keys, one.delivery.id)) != "active"

    # --- pickups --------------------------------------------------------------------------------------------

    async def adopt(self, room: int) -> list[BullmqDelivery]:
        """Jobs that a pickup took for us, unseen: they carry its token."""
        if not self._tokens or not room:
            return []
        tokens, self._tokens = set(self._tokens), []
        try:
            found = await self._held_under(tokens)
        except RedisUnavailable:
            self._tokens.extend(tokens)
            raise
        # What does not fit now is looked for again, until its lock runs out and it is recovered as stalled.
        self._tokens.extend({one.token for one in found[room:]})
        self._adopted.update((one.id, one.token) for one in found[:room])
        return found[:room]

    async def _held_under(self, tokens: set[str]) -> list[BullmqDelivery]:
        in_hand = set(self._adopted)  # as we begin: what is settled meanwhile was still active when we looked
        ids = await self._transport.run(read.get_ranges(self._keys, ["active"]))
        owners = await self._transport.run_many([read.get_lock(self._keys, one) for one in ids])
        held = zip(ids, owners, strict=True)
        mine = [one for one in held if one[1] in tokens and one not in in_hand]
        flats = await self._transport.run_many([read.get_job(self._keys, one) for one, _ in mine])
        return [
            BullmqDelivery(JobRecord.from_flat(one, flat), str(owner))
            for (one, owner), flat in zip(mine, flats, strict=True)
            if not isinstance(flat, Exception)
        ]

    def disown(self, adopted: Sequence[BullmqDelivery]) -> None:
        """The exchange failed before they could be handed out: they are looked for again."""
        self._adopted.difference_update((one.id, one.token) for one in adopted)
        self._tokens.extend({one.token for one in adopted})
