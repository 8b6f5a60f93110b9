"""Heartbeats and the stalled sweep, in bounded calls.

Guarantee: no call here costs more than the list of active jobs plus the jobs it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toril.commands.command import Arg, Command, Replay, Reply, call, no_value, plain
from toril.commands.library import official
from toril.commands.own_script import OwnScript
from toril.protocol.keys import AnyKeys, QueueKeys

# No worker announces its names for longer.
_NAMES_MS = 600_000


class HeldLock(NamedTuple):
    """A lock of this worker, and the job when it was fetched: they decide whether an expired lock is retaken."""

    job_id: str
    token: str
    started: Arg = ""  # `ats`; without it the lock is not taken again
    stalls: Arg = ""  # `stc`
    picked_up: Arg = ""  # `processedOn`


_EXTEND_LOCKS = OwnScript(
    "extend_locks", keys="stalled active", args="base lock_ms", each=" ".join(HeldLock._fields)
)


def extend_locks(
    keys: QueueKeys, held: Sequence[HeldLock | tuple[str, str]], *, lock_ms: int
) -> Command[list[str]]:
    """Renews locks, or takes expired ones again; returns the jobs that this worker has no longer."""
    args = _EXTEND_LOCKS.args(base=keys.base, lock_ms=lock_ms)
    for one in held:
        args += HeldLock(*one)
    return _EXTEND_LOCKS.call((keys.stalled, keys.active), args, _ids, Replay.SAFE)


def extend_lock(keys: QueueKeys, job_id: str, token: str, *, lock_ms: int) -> Command[bool]:
    """Renews one lock by the official script; returns False when it expired or another worker has it."""
    return call(
        official("extendLock"),
        (keys.lock(job_id), keys.stalled),
        [token, lock_ms, job_id],
        bool,
        Replay.SAFE,
    )


class Sweep(NamedTuple):
    """Identifies a sweep, with the time after one of its calls within which the next one may check jobs.

    A call that a hanging server delayed for longer checks nothing: the locks of running workers may have expired.
    """

    token: str
    grace_ms: int


_ANY_SWEEP = Sweep("sweep", 15_000)

_BEGIN = OwnScript(
    "sweep_begin",
    keys="stalled active stalled_check meta events suspects sweep",
    args="now_ms interval_ms token grace_ms",
)
_STEP = OwnScript(
    "sweep_step",
    keys="stalled wait active meta paused marker events suspects sweep",
    args="max_stalled base limit token grace_ms",
)


def sweep_begin(keys: QueueKeys, *, now_ms: int, interval_ms: int, sweep: Sweep = _ANY_SWEEP) -> Command[int]:
    """Begins a sweep; returns the number of suspects to check, or -1 when a worker swept within the interval."""
    args = _BEGIN.args(now_ms=now_ms, interval_ms=interval_ms, token=sweep.token, grace_ms=sweep.grace_ms)
    script_keys = _BEGIN.keys(keys, suspects=keys.toril("suspects"), sweep=keys.toril("sweep"))
    return _BEGIN.call(script_keys, args, int)


def sweep_step(
    keys: QueueKeys, *, max_stalled: int, suspects: int, sweep: Sweep = _ANY_SWEEP
) -> Command[tuple[list[str], int]]:
    """Checks up to `suspects` of them; returns the ids moved back to wait, and how many suspects are left."""
    args = _STEP.args(
        max_stalled=max_stalled,
        base=keys.base,
        limit=suspects,
        token=sweep.token,
        grace_ms=sweep.grace_ms,
    )
    script_keys = _STEP.keys(keys, suspects=keys.toril("suspects"), sweep=keys.toril("sweep"))
    return _STEP.call(script_keys, args, _swept)


def _swept(reply: list[Reply]) -> tuple[list[str], int]:
    return _ids(reply[0]), int(reply[1])


def official_sweep(keys: QueueKeys, *, max_stalled: int, now_ms: int, interval_ms: int) -> Command[list[str]]:
    """The official sweep in one call, for comparison; do not use it on a large queue."""
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
    """Removes a lock before it expires, without moving the job."""
    return call(official("releaseLock"), (keys.lock(job_id),), [token, lock_ms], bool)


def report_worker(
    keys: AnyKeys, worker_id: str, report: bytes, *, now_ms: int, expire_ms: int
) -> tuple[Command[None], ...]:
    """Writes a worker's report, which expires when the worker does not renew it, and lists the worker."""
    workers = keys.toril("workers")
    return (
        plain(no_value, "SET", keys.toril(f"worker:{worker_id}"), report, "PX", expire_ms),
        plain(no_value, "ZADD", workers, now_ms, worker_id),
        plain(no_value, "ZREMRANGEBYSCORE", workers, 0, now_ms - expire_ms),
        plain(no_value, "PEXPIRE", workers, expire_ms),
    )


def announce_names(
    keys: AnyKeys, names: Sequence[str], *, now_ms: int, expire_ms: int
) -> tuple[Command[Reply], ...]:
    """Announces the job names that a worker handles ("*": all) for `expire_ms`; the last reply holds those of all
    workers."""
    known = keys.toril("names")
    args = [arg for name in names for arg in (now_ms + expire_ms, name)]
    return (
        *([plain(no_value, "ZADD", known, *args)] if args else []),
        plain(no_value, "ZREMRANGEBYSCORE", known, 0, now_ms),
        plain(no_value, "PEXPIRE", known, max(expire_ms, _NAMES_MS)),
        plain(lambda found: frozenset(_ids(found)), "ZRANGE", known, 0, -1),
    )


def _ids(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]
