"""Deliveries of BullMQ jobs, their lock tokens, and the configuration of their backend.

Guarantee: creating a delivery decodes only the count of attempts; a count that cannot be parsed delays no other job.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toril.backends._result_forwarder import ResultForwarder
from toril.commands.locks import HeldLock
from toril.errors import MalformedValue
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD, Refusals
from toril.protocol.repeat_rules import DEFAULT_RULES, RepeatRules


class LockTokens:
    """Tokens that no other worker has: 96 random bits, and the number of the call, as Node's.

    The token of a call is written with the lock of each job that it fetches: it is short.
    """

    __slots__ = ("_count", "_worker")

    def __init__(self) -> None:
        self._worker = base64.urlsafe_b64encode(os.urandom(12)).decode()
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"{self._worker}:{self._count}"


class BullmqDelivery:
    """A fetched job: its hash, and the token of its lock."""

    __slots__ = ("attempts_made", "id", "lock_lost", "record", "token")

    def __init__(self, record: JobRecord, token: str) -> None:
        self.id = record.id
        self.record = record
        self.token = token
        self.attempts_made = _attempts_made(record)
        self.lock_lost = False

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def max_attempts(self) -> int:
        return self.record.max_attempts

    @property
    def attempts_started(self) -> int:
        """Pickups, this one included; 0 if the count cannot be parsed."""
        try:
            return self.record.attempts_started
        except MalformedValue:
            return 0

    @property
    def refusals(self) -> Refusals | None:
        return Refusals.from_field(self.record.fields.get(JOB_FIELD.encode()), self.attempts_started)

    @property
    def lock(self) -> HeldLock:
        """The lock, with the fields that show whether it may be renewed after it expired."""
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
    """How a worker fetches jobs and renews their locks."""

    worker_id: str
    lock_ms: int
    stalled_ms: int
    max_stalled: int
    heartbeat: float  # seconds
    names: tuple[str, ...] = ()  # of jobs that the worker has handlers for; "*": all
    limiter: Mapping[str, int] | None = None
    keep_completed: Mapping[str, Any] | None = None  # for jobs without an option of their own
    keep_failed: Mapping[str, Any] | None = None
    metrics_size: int | None = None
    max_attempts: int | None = None
    events_max_len: int | None = None
    repeat_rules: RepeatRules = DEFAULT_RULES
    forwarder: ResultForwarder | None = None  # what results become in another queue


def _attempts_made(record: JobRecord) -> int:
    """A count that cannot be parsed must not fail the other jobs of the call: the script will fail this one."""
    fields = record.fields
    if b"atm" not in fields and b"attemptsMade" not in fields:
        return 0  # as for most jobs
    try:
        return record.attempts_made
    except MalformedValue:
        return 0
