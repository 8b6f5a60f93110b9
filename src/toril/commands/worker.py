"""Commands of a BullMQ worker: fetch jobs, settle outcomes, or both in one call.

Guarantee: settling and fetching in one call leaves what the official scripts would leave when run one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from toril.commands.command import Arg, Command, Replay, Reply, call, no_value, plain
from toril.commands.library import grouped, official
from toril.commands.own_script import OwnScript
from toril.errors import ScriptFailed, TorilError, refusal
from toril.protocol.codec import pack
from toril.protocol.keys import QueueKeys

SettlementKind = Literal["completed", "failed", "delayed", "retry", "wait"]
# The official script behind each kind: what a refusal names as its command, as in Node.
SCRIPTS: dict[str, str] = {
    "completed": "moveToFinished",
    "failed": "moveToFinished",
    "delayed": "moveToDelayed",
    "retry": "retryJob",
    "wait": "moveJobFromActiveToWait",
}


# Entries of the reply of a call in which limits of groups play no part.
_PLAIN_REPLY = 5
# The score of a delayed job is its time in milliseconds, times this, plus a sequence number.
DELAYED_FACTOR = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickup:
    """How jobs are fetched: lock token and time, the worker's name, and the rate limit."""

    token: str
    lock_ms: int
    worker: str | None = None
    limiter: Mapping[str, int] | None = None  # {"max": jobs, "duration": ms}

    def packed(self) -> bytes:
        return pack(
            {"token": self.token, "lockDuration": self.lock_ms, "limiter": self.limiter, "name": self.worker}
        )


class Settlement(NamedTuple):
    """The outcome of one job, as the script takes it."""

    job_id: str
    kind: SettlementKind
    token: str
    value: Arg = ""
    options: Arg = ""  # of a completed job: none when it is kept for good and not counted in metrics
    fields: bytes = b""


_SETTLE = OwnScript(
    "settle",
    keys="wait active prioritized events stalled limiter delayed paused meta pc marker completed failed "
    "completed_metrics failed_metrics",
    args="base now_ms capacity token lock_ms worker rate_limit",
    each=" ".join(Settlement._fields),
)


class GroupLimitsNote(IntEnum):
    """What a fetch found about the limits of groups."""

    NONE = 0  # there are none: `settle` without `grouped` is enough
    FOUND = 1  # there are some: `settle` without `grouped` has not fetched for that
    MORE = 2  # a bounded number of jobs was looked at; another fetch may return more at once


@dataclass(frozen=True, slots=True)
class FetchReply:
    """The reply to a call: an entry for each settlement, new jobs, and when to fetch again if there are none."""

    ack_errors: list[TorilError | None]
    jobs: list[tuple[str, list[bytes]]]  # id and the flat fields of its hash
    limited_ms: int  # the rate limit opens after this time
    next_at_ms: int  # the next delayed job is due at this time
    fetch_error: str = ""  # why no jobs could be fetched, though the outcomes were settled
    group_limits: GroupLimitsNote | None = None  # what the script says about limits of groups


def finish_options(
    *,
    pickup: Pickup,
    token: str,
    keep: Mapping[str, int],
    attempts: int,
    metrics_size: int | None = None,
    parent_flags: Mapping[str, bool] | None = None,
) -> bytes:
    """Returns the packed options of a finish; `token` is the finished job's, `pickup` that of the next fetch."""
    flags = parent_flags or {}
    return pack(
        {
            "token": token,
            "name": pickup.worker,
            "keepJobs": keep,
            "limiter": pickup.limiter,
            "lockDuration": pickup.lock_ms,
            "attempts": attempts,
            "maxMetricsSize": metrics_size or "",
            "fpof": flags.get("fpof", False),
            "cpof": flags.get("cpof", False),
            "idof": flags.get("idof", False),
            "rdof": flags.get("rdof", False),
        }
    )


def needs_no_options(keep: Mapping[str, int], metrics_size: int | None) -> bool:
    """Returns whether a completed job needs no options: it is kept for good and not counted in metrics."""
    return not metrics_size and keep == {"count": -1}


def packed_fields(fields: Mapping[str, str]) -> bytes:
    """Returns packed hash fields that a failing job gets (reason, stack trace)."""
    return pack([text for pair in fields.items() for text in pair]) if fields else b""


def settle(
    keys: QueueKeys,
    settlements: Sequence[Settlement],
    *,
    capacity: int,
    pickup: Pickup,
    now_ms: int,
    has_group_limits: bool = False,
) -> Command[FetchReply]:
    """Settles all and fetches up to `capacity` jobs, in one call.

    With `has_group_limits` the limits of groups are applied. Without it, jobs of a queue that has some are not fetched,
    and the reply says so.
    """
    args = _SETTLE.args(
        base=keys.base,
        now_ms=now_ms,
        capacity=capacity,
        token=pickup.token,
        lock_ms=pickup.lock_ms,
        worker=pickup.worker or "",
        rate_limit=b"" if pickup.limiter is None else pack(pickup.limiter),
    )
    for one in settlements:
        args += one
    script = grouped("settle") if has_group_limits else _SETTLE.script
    return Command(args, functools.partial(_fetch_reply, settlements), script, _settle_keys(keys))


@functools.lru_cache(maxsize=256)
def _settle_keys(keys: QueueKeys) -> tuple[str, ...]:
    return _SETTLE.keys(
        keys, completed_metrics=keys.metrics("completed"), failed_metrics=keys.metrics("failed")
    )


def _fetch_reply(settlements: Sequence[Settlement], reply: list[Reply]) -> FetchReply:
    group_limits = GroupLimitsNote(reply.pop()) if len(reply) > _PLAIN_REPLY else None
    codes, jobs, limited, next_at, fetch_error = reply
    ack_errors: list[TorilError | None] = (
        [_ack_error(one, code) for one, code in zip(settlements, codes, strict=True)]
        if codes
        else [None] * len(settlements)
    )
    fetched = [(fields.pop().decode(errors="replace"), fields) for fields in jobs]
    text = fetch_error.decode(errors="replace")
    return FetchReply(ack_errors, fetched, limited, next_at, text, group_limits)


def _ack_error(settlement: Settlement, code: int | bytes) -> TorilError | None:
    if isinstance(code, bytes):
        return ScriptFailed(f"settle {settlement.kind}: {code.decode(errors='replace')}")
    if code >= 0:
        return None
    return refusal(code, job_id=settlement.job_id, command=SCRIPTS.get(settlement.kind))


def fetch_one(keys: QueueKeys, *, pickup: Pickup, now_ms: int) -> Command[FetchReply]:
    """Fetches one job by the official `moveToActive`, as upstream's worker does."""
    return call(
        official("moveToActive"),
        _settle_keys(keys)[:11],
        [keys.base, now_ms, pickup.packed()],
        _fetched_one,
    )


def _fetched_one(reply: list[Reply]) -> FetchReply:
    fields, job_id, limited, next_at = reply
    jobs = [(job_id.decode(errors="replace"), fields)] if job_id else []
    return FetchReply([], jobs, int(limited or 0), int(next_at or 0))


def wait_for_marker(keys: QueueKeys, timeout: float) -> Command[float | None]:
    """Blocks until the queue has a marker; returns 0 for a job that is ready, else when a delayed job is due (ms).

    Popping a marker fetches no job: a lost reply costs at most a short wait.
    """
    return Command(("BZPOPMIN", keys.marker, timeout), _marker_score, replay=Replay.SAFE)


def has_marker(keys: QueueKeys) -> Command[bool]:
    """Returns whether the queue has a marker; nothing is popped."""
    return plain(bool, "EXISTS", keys.marker)


def set_marker(keys: QueueKeys) -> Command[None]:
    """Wakes one waiting worker."""
    return plain(no_value, "ZADD", keys.marker, 0, "0")


def _marker_score(reply: list[Reply] | None) -> float | None:
    return None if reply is None else float(reply[2])


def count_ready(keys: QueueKeys, now_ms: int) -> list[Command[int | None]]:
    """Returns the numbers of waiting and prioritized jobs, of delayed ones that are due, and when the first one is."""
    due = (now_ms + 1) * DELAYED_FACTOR - 1
    return [
        plain(int, "LLEN", keys.wait),
        plain(int, "ZCARD", keys.prioritized),
        plain(int, "ZCOUNT", keys.delayed, "-inf", due),
        plain(_first_due, "ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
    ]


def _first_due(reply: list[bytes]) -> int | None:
    return int(float(reply[1])) // DELAYED_FACTOR if reply else None


def move_to_waiting_children(
    keys: QueueKeys, job_id: str, *, token: str, now_ms: int, child_key: str = ""
) -> Command[bool]:
    """Moves an active parent to waiting-children; returns False when no child is pending."""
    return call(
        official("moveToWaitingChildren"),
        (
            keys.active,
            keys.waiting_children,
            keys.job(job_id),
            keys.dependencies(job_id),
            f"{keys.job(job_id)}:unsuccessful",
            keys.stalled,
            keys.events,
        ),
        [token, child_key, now_ms, job_id, keys.base],
        functools.partial(_moved_to_children, job_id),
    )


def _moved_to_children(job_id: str, reply: int) -> bool:
    if reply < 0:
        raise refusal(reply, job_id=job_id, command="moveToWaitingChildren")
    return reply == 0
