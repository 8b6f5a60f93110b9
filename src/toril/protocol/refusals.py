"""Jobs that a worker puts back because it has no handler for their name: how often, since when, and for how long.

Guarantee: pure. The note that travels with a job is read back as it was written; one that cannot be read counts as
none, so a job never fails because of a note that another program wrote.

While a new version is rolled out, workers of the old one fetch jobs that only the new one can run. Such a job is
delayed without counting an attempt, and fails when no worker has had a handler for an hour.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from toril.protocol.backoff import Random, reconnect_delay

FIRST_DELAY: Final = 1.0  # seconds; doubles with every refusal
LONGEST_DELAY: Final = 60.0
OTHERS_DELAY: Final = 0.1  # seconds, if another worker has a handler for the name
GIVE_UP_AFTER: Final = 3600.0  # seconds after the first refusal: longer than a rolling deploy takes
# Where the note is stored: a field of the job's hash, which other clients ignore, or of an envelope's `meta`.
JOB_FIELD: Final = "toril:refusals"
META_FIELD: Final = "toril_refusals"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refusals of one job in a row, by all workers."""

    count: int
    first_ms: int  # when the first of them was, in Unix milliseconds of the server

    @staticmethod
    def one_more(before: Refusals | None, now_ms: int) -> Refusals:
        """The refusals with the one that happens now."""
        if before is None:
            return Refusals(1, now_ms)
        return Refusals(before.count + 1, min(before.first_ms, now_ms))

    def seconds(self, now_ms: int) -> float:
        """How long ago the first one was."""
        return (now_ms - self.first_ms) / 1000

    def delay(self, rng: Random = random.random) -> float:
        """Seconds until the job is tried again: 1, 2, 4, … 60, each ±20 %."""
        return reconnect_delay(self.count - 1, initial=FIRST_DELAY, maximum=LONGEST_DELAY, rng=rng)

    @staticmethod
    def delay_for_others(rng: Random = random.random) -> float:
        """Seconds until a job is tried again for whose name another worker has a handler, ±20 %."""
        return reconnect_delay(0, initial=OTHERS_DELAY, maximum=OTHERS_DELAY, rng=rng)

    # --- the note in a job's hash -----------------------------------------------------------------------------

    def to_field(self, attempts_started: int) -> str:
        """With the time of the fetch to which it belongs: a later fetch by a worker with a handler makes it void."""
        return f"{self.count} {self.first_ms} {attempts_started}"

    @staticmethod
    def from_field(raw: bytes | None, attempts_started: int) -> Refusals | None:
        """The note of the pickup just before this one."""
        parts = raw.split() if raw else []
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            return None
        count, first_ms, noted_at = (int(part) for part in parts)
        return Refusals(count, first_ms) if noted_at == attempts_started - 1 else None

    # --- the note in an envelope ------------------------------------------------------------------------------

    def to_meta(self) -> dict[str, int]:
        return {"count": self.count, "first_ms": self.first_ms}

    @staticmethod
    def from_meta(value: object) -> Refusals | None:
        if not isinstance(value, dict):
            return None
        count, first_ms = value.get("count"), value.get("first_ms")
        if type(count) is not int or type(first_ms) is not int or count < 1 or first_ms < 0:
            return None
        return Refusals(count, first_ms)
