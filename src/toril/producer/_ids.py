"""Ids for jobs that the client makes, many at a time.

    uuid    a UUID of version 4 without its hyphens: 32 characters
    short   16 letters and digits: 95 random bits

Guarantee: as random as the operating system's source, at a tenth of the cost of `uuid.uuid4`; a forked child does not
use the ids of its parent; a short id is no integer, which would be an id of the queue's counter.

Redis stores the id of a finished job several times (key, set, events) and writes it eight times to an append-only file:
a short id saves a tenth of the memory and a sixth of the file. An id must be unique among the jobs that one queue
keeps: with a hundred million of them, two random short ids are equal with a probability of 10⁻¹³.
"""

from __future__ import annotations

import base64
import os
import threading
from typing import Final, Literal

_AT_ONCE: Final = 256  # ids from one call to the system; 4 kB
SHORT_LENGTH: Final = 16
_VARIANT: Final = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def _uuids() -> list[str]:
    text = os.urandom(16 * _AT_ONCE).hex()
    return [_as_uuid(text[at : at + 32]) for at in range(0, len(text), 32)]


def _as_uuid(text: str) -> str:
    return f"{text[:12]}4{text[13:16]}{_VARIANT[text[16]]}{text[17:]}"


def _short_ids() -> list[str]:
    # Removing two of the 64 characters leaves each of the other 62 equally likely.
    text = base64.b64encode(os.urandom(12 * _AT_ONCE)).translate(None, b"+/=").decode()
    made = [text[at : at + SHORT_LENGTH] for at in range(0, len(text) - SHORT_LENGTH, SHORT_LENGTH)]
    return [one for one in made if not one.isdigit()]


class _UnusedIds:
    """Ids of one form that were made and not yet used."""

    def __init__(self, form: Literal["uuid", "short"]) -> None:
        self._make: Final = _uuids if form == "uuid" else _short_ids
        self._lock = threading.Lock()
        self._unused: list[str] = []

    def take(self) -> str:
        try:
            return self._unused.pop()
        except IndexError:
            return self._refill()

    def _refill(self) -> str:
        made = self._make()
        with self._lock:
            self._unused += made[1:]
        return made[0]

    def after_fork(self) -> None:
        """Drops the ids that the parent process will use."""
        self._lock = threading.Lock()
        self._unused = []


_uuid, _short = _UnusedIds("uuid"), _UnusedIds("short")
os.register_at_fork(after_in_child=_uuid.after_fork)
os.register_at_fork(after_in_child=_short.after_fork)

new_uuid = _uuid.take
new_short_id = _short.take
