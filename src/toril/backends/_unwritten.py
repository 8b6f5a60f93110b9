"""Settlements that are still to be written: dead letters of rejected messages, and outcomes that the server refused.

Guarantee: a settlement stays here, or in the call that was given it, until the server has written it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from toril.commands.envelope_settle import Settlement
from toril.errors import ScriptFailed, TorilError

logger = logging.getLogger("toril.worker")

# What could not be written is sent again after this time, and in parts of this size.
RESEND_DELAY = 1.0
RESEND_BATCH = 250
# A backend that closes waits so many times for a server that cannot write.
CLOSE_ATTEMPTS = 5

Write = Callable[[Sequence[Settlement]], Awaitable[Sequence[TorilError | None]]]


class Unwritten:
    """The settlements of one backend that are still to be written."""

    def __init__(self) -> None:
        self.rejected: list[Settlement] = []  # dead letters of messages that were never run
        self._failed: list[Settlement] = []  # outcomes that the server could not write
        self._sent: dict[int, Settlement] = {}  # those of both that have no reply yet, by identity
        self._resend_at = 0.0

    def __len__(self) -> int:
        """Outcomes that the server could not write."""
        return len(self._failed)

    def all(self) -> list[Settlement]:
        return [*self.rejected, *self._failed, *self._sent.values()]

    def take(self) -> list[Settlement]:
        """What the next call sends; its caller calls `put_back` or `keep_failed`."""
        taken, self.rejected = self.rejected, []
        if self._failed and time.monotonic() >= self._resend_at:
            taken += self._failed[:RESEND_BATCH]
            del self._failed[:RESEND_BATCH]
        if taken:
            self._sent.update((id(one), one) for one in taken)
        return taken

    def put_back(self, taken: Sequence[Settlement]) -> None:
        """The call failed."""
        self._remove_sent(taken)
        self.rejected[:0] = taken

    def keep_failed(self, sent: Sequence[Settlement], ack_errors: Sequence[TorilError | None]) -> None:
        """Keeps what the server could not write."""
        self._remove_sent(sent)
        failed = [
            (one, error)
            for one, error in zip(sent, ack_errors, strict=True)
            if isinstance(error, ScriptFailed)
        ]
        if failed:
            self._failed += [one for one, _ in failed]
            self._resend_at = time.monotonic() + RESEND_DELAY
            logger.warning(
                "%d outcomes could not be written and are sent again: %s", len(failed), failed[0][1]
            )

    def _remove_sent(self, settlements: Sequence[Settlement]) -> None:
        if self._sent:
            for one in settlements:
                self._sent.pop(id(one), None)

    async def write_all(self, write: Write) -> None:
        """Writes everything, and waits a while for a server that cannot write it."""
        for left in reversed(range(CLOSE_ATTEMPTS)):
            self._resend_at = 0.0
            while taken := self.take():
                await self._write(write, taken)
            if not self._failed:
                return
            if left:
                await asyncio.sleep(RESEND_DELAY)

    async def _write(self, write: Write, taken: Sequence[Settlement]) -> None:
        try:
            ack_errors = await write(taken)
        except BaseException:
            self.put_back(taken)
            raise
        self.keep_failed(taken, ack_errors)

    def log_rest(self) -> None:
        for one in (*self.rejected, *self._failed):
            logger.error(
                "job %s: its outcome (%s) could not be written; it may run again",
                one.job_id,
                one.kind,
            )
