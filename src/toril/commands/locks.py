"""Heartbeats and the stalled sweep, in bounded calls.

Guarantee: no call here costs more than the list of active jobs plus the jobs it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from toril.commands.command import Arg, Command, Replay, call, plain
from toril.commands.library import official
from toril.commands.own_script import OwnScript
from toril.protocol.keys import AnyKeys, QueueKeys

# No worker announces its names for longer.
_NAMES_MS = 600_000


class HeldLock(NamedTuple):
    """A lock of ours, and the job's fields at pickup: by them a lock that ran out is retaken, or is known as lost."""

    job_id: str
    token: str
    started: Arg = ""  # `ats`; without it the lock is not retaken
    stalls: Arg = ""  # `stc`
    picked_up: Arg = ""  # `processedOn`


_EXTEND_LOCKS = OwnScript(
    "extend_locks", keys="stalled active", args="base lock_ms", each=" ".join(HeldLock._fields)
)


def extend_locks(
    keys: QueueKeys, held: Sequence[HeldLock | tuple[str, str]], *, lock_ms: int
) -> Command[list[str]]:
    """Extends locks, or retakes them; the value lists the jobs that are no longer ours."""
    args = _EXTEND_LOCKS.args(base=keys.base, lock_ms=lock_ms)
    for one in held:
        args += HeldLock(*one)
    return _EXTEND_LOCKS.call((keys.stalled, keys.active), args, _ids, Replay.SAFE)


def extend_lock(keys: QueueKeys, job_id: str, token: str, *, lock_ms: int) -> Command[bool]:
    """One lock by the official script; False when the lock is gone or another's."""
    return call(
        official("extendLock"),
        (keys.lock(job_id), keys.stalled),
        [token, lock_ms, job_id],
        bool,
        Replay.SAFE,
    )


class Sweep(NamedTuple):
    """Whose sweep it is, and how long after one of its calls the next one may still judge.

    A call that a hanging server held up for longer judges nothing: the locks of living workers may have run out.
    """

    token: str
    patience_ms: int


_ANY_SWEEP = Sweep("sweep", 15_000)

_BEGIN = OwnScript(
    "sweep_begin",
    keys="stalled active stalled_check meta events suspects sweep",
    args="now_ms interval_ms token patience_ms",
)
_STEP = OwnScript(
    "sweep_step",
    keys="stalled wait active meta paused marker events suspects sweep",
    args="max_stalled base limit token patience_ms",
)


def sweep_begin(keys: QueueKeys, *, now_ms: int, interval_ms: int, sweep: Sweep = _ANY_SWEEP) -> Command[int]:
    """Opens a sweep; the value is the number of suspects to judge, or -1 when somebody swept a moment ago."""
    args = _BEGIN.args(
        now_ms=now_ms, interval_ms=interval_ms, token=sweep.token, patience_ms=sweep.patience_ms
    )
    script_keys = _BEGIN.keys(keys, suspects=keys.toril("suspects"), sweep=keys.toril("sweep"))
    return _BEGIN.call(script_keys, args, int)


def sweep_step(
    keys: QueueKeys, *, max_stalled: int, suspects: int, sweep: Sweep = _ANY_SWEEP
) -> Command[tuple[list[str], int]]:
    """Judges up to `suspects` of them; the value is (ids moved back to wait, suspects left to this sweep)."""
    args = _STEP.args(
        max_stalled=max_stalled,
        base=keys.base,
        limit=suspects,
        token=sweep.token,
        patience_ms=sweep.patience_ms,
    )
    script_keys = _STEP.keys(keys, suspects=keys.toril("suspects"), sweep=keys.toril("sweep"))
    return _STEP.call(script_keys, args, _swept)


def _swept(reply: list[Any]) -> tuple[list[str], int]:
    return _ids(reply[0]), int(reply[1])


def sweep_at_once(keys: QueueKeys, *, max_stalled: int, now_ms: int, interval_ms: int) -> Command[list[str]]:
    """The official sweep in one call: the reference ours is compared with; do not use it on a large queue."""
    return call(
        official("moveStalledJobsToWait"),
        (
            keys.stalled,
            keys.wait,
            keys.active,
            keys.stalled_check,
            keys.meta,
            keys.paused,
            keys.marker,
            keys.events,
        ),
        [max_stalled, keys.base, now_ms, interval_ms],
        _ids,
    )


def release_lock(keys: QueueKeys, job_id: str, token: str, *, lock_ms: int) -> Command[bool]:
    """Gives a lock up before its time, without moving the job."""
    return call(official("releaseLock"), (keys.lock(job_id),), [token, lock_ms], bool)


def report_worker(
    keys: AnyKeys, worker_id: str, report: bytes, *, now_ms: int, life_ms: int
) -> tuple[Command[None], ...]:
    """A worker's report of itself, which vanishes when the worker does, and its place in the list of workers."""
    workers = keys.toril("workers")
    return (
        plain(_nothing, "SET", keys.toril(f"worker:{worker_id}"), report, "PX", life_ms),
        plain(_nothing, "ZADD", workers, now_ms, worker_id),
        plain(_nothing, "ZREMRANGEBYSCORE", workers, 0, now_ms - life_ms),
        plain(_nothing, "PEXPIRE", workers, life_ms),
    )


def announce_names(
    keys: AnyKeys, names: Sequence[str], *, now_ms: int, life_ms: int
) -> tuple[Command[Any], ...]:
    """Announces the job names that a worker handles ("*": all) for `life_ms`; the last reply holds those of all
    workers."""
    known = keys.toril("names")
    args = [arg for name in names for arg in (now_ms + life_ms, name)]
    return (
        *([plain(_nothing, "ZADD", known, *args)] if args else []),
        plain(_nothing, "ZREMRANGEBYSCORE", known, 0, now_ms),
        plain(_nothing, "PEXPIRE", known, max(life_ms, _NAMES_MS)),
        plain(lambda found: frozenset(_ids(found)), "ZRANGE", known, 0, -1),
    )


def _nothing(_: Any) -> None:
    return None


def _ids(reply: list[bytes]) -> list[str]:
    return [one.decode() for one in reply]
