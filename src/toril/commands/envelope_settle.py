"""Settlements of list and stream jobs, and the replies of the scripts.

Guarantee: a reply is decoded whatever another program wrote into the sorted set: fetched jobs reach their worker.
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
    """The outcome of one job. `reference` identifies it in its queue, `fence` its delivery.

    On a list these are the envelope as it was fetched and the token of its lock; on a stream the entry id and the
    number of deliveries.
    """

    kind: SettlementKind
    job_id: str
    reference: bytes | str
    fence: str | int
    due_ms: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchedEnvelope:
    """A fetched message that has not been decoded."""

    text: bytes  # the envelope; for a stream entry without one: all its fields in a row
    reference: bytes | str
    fence: str | int
    unsettled_deliveries: int  # earlier deliveries without an outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReply:
    """The reply to a call that settles and fetches."""

    ack_errors: list[TorilError | None]  # `ScriptFailed`: could not be written; all others are final
    jobs: list[FetchedEnvelope]
    next_due_ms: int  # -1: nothing is scheduled
    fetch_error: str  # why nothing could be fetched, or empty


def args_of(settlements: Sequence[Settlement]) -> list[Arg]:
    """Returns the arguments of all settlements."""
    args: list[Arg] = []
    for one in settlements:
        args += (one.kind, one.job_id, one.reference, one.fence, one.due_ms, one.text)
    return args


def ack_errors_of(settlements: Sequence[Settlement], codes: Sequence[int | bytes]) -> list[TorilError | None]:
    """Returns None for each outcome that was accepted, now or by a call whose reply was lost, else the error."""
    return [_ack_error(one, code) for one, code in zip(settlements, codes, strict=True)]


def _ack_error(settlement: Settlement, code: int | bytes) -> TorilError | None:
    if isinstance(code, bytes):
        problem = code.decode(errors="replace")
        return ScriptFailed(f"job {settlement.job_id}: {settlement.kind}: {problem}")
    return None if code >= 0 else refusal(code, job_id=settlement.job_id, command=settlement.kind)


def due_ms_of(score: bytes) -> int:
    """Returns when the next scheduled job is due; -1: never."""
    due = float(score)
    return int(due) if math.isfinite(due) else -1
