"""A BullMQ job in hand, under which lock, and on which terms.

Guarantee: making a delivery decodes nothing but the count of attempts, and a count that does not parse stops nobody.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toril.commands.locks import HeldLock
from toril.errors import MalformedValue
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD, Refusals


class LockTokens:
    """UUIDs of version 4, from random bytes that are fetched for many at once: each fetch is a call to the system."""

    __slots__ = ("_at", "_bytes")

    STOCK = 256

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0

    def next(self) -> str:
        if self._at == len(self._bytes):
            self._bytes, self._at = os.urandom(16 * self.STOCK), 0
        start, self._at = self._at, self._at + 16
        return str(uuid.UUID(bytes=self._bytes[start : self._at], version=4))


class BullmqDelivery:
    """A job of ours: its hash and the token of our lock."""

    __slots__ = ("attempts_made", "id", "lock_lost", "record", "token")

    def __init__(self, record: JobRecord, token: str) -> None:
        self.id = record.id
        self.record = record
        self.token = token
        self.attempts_made = _made(record)
        self.lock_lost = False

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def max_attempts(self) -> int:
        return self.record.max_attempts

    @property
    def attempts_started(self) -> int:
        """Pickups, this one included; a count that does not parse is none."""
        try:
            return self.record.attempts_started
        except MalformedValue:
            return 0

    @property
    def refusals(self) -> Refusals | None:
        return Refusals.from_field(self.record.fields.get(JOB_FIELD.encode()), self.attempts_started)

    @property
    def lock(self) -> HeldLock:
        """Our lock, with what tells whether it may be retaken."""
        fields = self.record.fields
        return HeldLock(
            self.id,
            self.token,
            fields.get(b"ats", b""),
            fields.get(b"stc", b""),
            fields.get(b"processedOn", b""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BullmqConfig:
    """How a worker takes and keeps jobs."""

    worker_id: str
    lock_ms: int
    stalled_ms: int
    max_stalled: int
    heartbeat: float  # seconds
    names: tuple[str, ...] = ()  # of jobs that the worker has handlers for; "*": all
    limiter: Mapping[str, int] | None = None
    keep_completed: Mapping[str, Any] | None = None  # for jobs that say nothing themselves
    keep_failed: Mapping[str, Any] | None = None
    metrics_size: int | None = None
    max_attempts: int | None = None
    events_max_len: int | None = None


def _made(record: JobRecord) -> int:
    """A count that does not parse must not hold up the jobs that came with it: the script will bury the job."""
    fields = record.fields
    if b"atm" not in fields and b"attemptsMade" not in fields:
        return 0  # as for most
    try:
        return record.attempts_made
    except MalformedValue:
        return 0
