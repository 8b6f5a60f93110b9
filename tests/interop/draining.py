"""A whole drain by toril's commands, call by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toril.commands import cleaning
from toril.commands.cleaning import DrainStep
from toril.commands.command import Command
from toril.commands.once import Calls
from toril.protocol.keys import QueueKeys


def drain_all(run: Callable[[Command[Any]], Any], keys: QueueKeys, *, delayed: bool, most: int) -> int:
    """How many jobs were removed; each call looks at `most` of them."""
    calls, removed, cursor = Calls(keys), 0, b""
    while True:
        command = cleaning.drain(keys, most=most, delayed=delayed, cursor=cursor, calls=calls)
        step: DrainStep = run(command)
        removed += step.removed
        cursor = step.cursor
        if not cursor:
            return removed
