"""Settling and taking jobs of list and stream queues: what goes into the call, and what comes back.

Guarantee: a reply is read to its end whatever a stranger wrote into the sorted set: jobs that the call has taken reach
their worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toril.commands.command import Arg
from toril.commands.envelopes import SettlementKind
from toril.errors import ScriptFailed, TorilError, refusal

# The arguments of one settlement, as the scripts name them.
SETTLEMENT: Final = "kind job_id reference fence due_ms text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of one job. `reference` finds it in its queue, `fence` tells its delivery from a later one.

    On a list these are the envelope as it was taken and the token of its lock; on a stream the entry id and the number
    of deliveries.
    """

    kind: SettlementKind
    job_id: str
    reference: bytes | str
    fence: str | int
    due_ms: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class TakenEnvelope:
    """A message in our hand, not yet read."""

    text: bytes  # the envelope; an entry of a stream that has none: all its fields one after the other
    reference: bytes | str
    fence: str | int
    silent_deliveries: int  # earlier deliveries that ended without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReply:
    """What a call brought back."""

    ack_errors: list[TorilError | None]  # `ScriptFailed`: could not be written; all others are final
    jobs: list[TakenEnvelope]
    next_due_ms: int  # -1: nothing is scheduled
    trouble: str  # why nothing could be taken


def args_of(settlements: Sequence[Settlement]) -> list[Arg]:
    """All settlements, as the scripts take them."""
    args: list[Arg] = []
    for one in settlements:
        args += (one.kind, one.job_id, one.reference, one.fence, one.due_ms, one.text)
    return args


def ack_errors_of(settlements: Sequence[Settlement], codes: Sequence[int | bytes]) -> list[TorilError | None]:
    """None for each outcome that was accepted, now or by an earlier call whose reply was lost."""
    return [_ack_error(one, code) for one, code in zip(settlements, codes, strict=True)]


def _ack_error(settlement: Settlement, code: int | bytes) -> TorilError | None:
    if isinstance(code, bytes):
        problem = code.decode(errors="replace")
        return ScriptFailed(f"job {settlement.job_id}: {settlement.kind}: {problem}")
    return None if code >= 0 else refusal(code, job_id=settlement.job_id, command=settlement.kind)


def due_ms_of(score: bytes) -> int:
    """When the next scheduled job is due; -1: never."""
    due = float(score)
    return int(due) if math.isfinite(due) else -1
