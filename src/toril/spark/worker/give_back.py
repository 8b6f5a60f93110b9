"""Gives back active jobs whose worker is known to be gone, in the order in which they were taken.

Guarantee: only jobs that still have the lock of that worker are given back; their attempt does not count. A handler
that runs nevertheless is refused when it settles.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final

from toril.commands import read
from toril.commands.worker import Pickup, Settlement, settle
from toril.errors import TorilError
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

_PER_CALL: Final = 500


def give_back_jobs(transport: BlockingTransport, keys: QueueKeys, held: Sequence[tuple[str, str]]) -> int:
    """Gives back jobs, each with its token, oldest first; returns how many were accepted."""
    done = 0
    now_ms = transport.now_ms()
    nothing = Pickup(token=str(uuid.uuid4()), lock_ms=1)
    # The last one first, because each is put before those that were given back before it.
    ranked = [Settlement(one, "wait", token, rank or "") for rank, (one, token) in enumerate(held)][::-1]
    for start in range(0, len(ranked), _PER_CALL):
        part = ranked[start : start + _PER_CALL]
        reply = transport.run(settle(keys, part, capacity=0, pickup=nothing, now_ms=now_ms))
        done += sum(error is None for error in reply.ack_errors)
    return done


def give_back_of(transport: BlockingTransport, keys: QueueKeys, is_gone: Callable[[str], bool]) -> int:
    """Gives back the active jobs of workers that are gone, by the name that each job has of its worker."""
    ids = transport.run(read.get_ranges(keys, ["active"]))[::-1]  # the head of the list is the newest
    if not ids:
        return 0
    facts = transport.run_many([read.get_fields(keys, one, ("pb",)) for one in ids])
    ours = [
        one
        for one, fact in zip(ids, facts, strict=True)
        if not isinstance(fact, TorilError) and fact[0] and is_gone(fact[0].decode(errors="replace"))
    ]
    tokens = transport.run_many([read.get_lock(keys, one) for one in ours]) if ours else []
    held = [(one, token) for one, token in zip(ours, tokens, strict=True) if isinstance(token, str)]
    return give_back_jobs(transport, keys, held)
