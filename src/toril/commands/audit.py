"""The audit of a dashboard: who did what to which queue, in a bounded stream.

<prefix>:toril:audit    one entry before each act, and one with its outcome
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toril.commands.command import Command, Replay, plain
from toril.commands.read import Entry, entries

MOST_ENTRIES: Final = 10_000


def audit_key(prefix: str) -> str:
    return f"{prefix}:toril:audit"


def append_audit(prefix: str, fields: Mapping[str, str]) -> Command[str]:
    """Appends an entry and returns its id."""
    words = [word for pair in fields.items() for word in pair]
    return plain(
        lambda reply: str(reply.decode()),
        "XADD", audit_key(prefix), "MAXLEN", "~", MOST_ENTRIES, "*", *words,
        replay=Replay.NEVER,
    )  # fmt: skip


def read_audit(prefix: str, *, before: str = "", count: int = 100) -> Command[list[Entry]]:
    """Returns entries, newest first, before an id."""
    start = f"({before}" if before else "+"
    return plain(entries, "XREVRANGE", audit_key(prefix), start, "-", "COUNT", count)
