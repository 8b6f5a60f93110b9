"""Jobs that were stored to follow another one (`Deduplication.keep_last_if_active`), and left behind by BullMQ 5.

Guarantee: one step reads a bounded number of keys. On a server with more keys, several sweeps pass until a stored job
is found; `toril doctor --repair` finds it at once.
"""

from __future__ import annotations

from typing import Final

from toril.commands import manage, read
from toril.errors import ScriptFailed
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

# Keys that one sweep looks at: about a millisecond of the server's time.
SCANNED_PER_SWEEP: Final = 5_000


class LeftJobs:
    """Adds stored jobs whose predecessor has ended, a few with every sweep."""

    def __init__(self, keys: QueueKeys, transport: AsyncTransport) -> None:
        self._keys = keys
        self._transport = transport
        self._cursor = "0"

    async def requeue(self, now_ms: int) -> list[str]:
        """Returns the ids of the jobs that were added."""
        beginning = self._keys.next_job("")
        command = read.scan_keys(self._keys, self._cursor, [beginning], step=SCANNED_PER_SWEEP)
        self._cursor, found = await self._transport.run(command)
        added = [await self._requeue_one(key.removeprefix(beginning), now_ms) for key in found]
        return [job_id for job_id in added if job_id is not None]

    async def _requeue_one(self, deduplication_id: str, now_ms: int) -> str | None:
        try:
            return await self._transport.run(manage.requeue_left(self._keys, deduplication_id, now_ms=now_ms))
        except ScriptFailed:
            return None  # it cannot be read; the doctor reports it
