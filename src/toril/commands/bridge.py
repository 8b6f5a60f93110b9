"""What moving jobs between queues needs: arrivals that count once.

Guarantee: a job that is sent again arrives once, for as long as its arrival is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from toril.commands.command import Command, plain
from toril.commands.envelopes import EnvelopeKeys, EnvelopeToAdd, jobs_key, kind_of
from toril.commands.once import Calls, once
from toril.commands.own_script import OwnScript
from toril.protocol.keys import QueueKeys

_IMPORT = OwnScript(
    "envelopes_import",
    keys="jobs scheduled arrivals",
    args="kind now_ms forget_before_ms",
    each="name due_ms envelope",
)


def take_in(
    keys: EnvelopeKeys,
    jobs: Sequence[tuple[str, EnvelopeToAdd]],
    *,
    now_ms: int,
    forget_ms: int,
    calls: Calls | None = None,
) -> Command[int]:
    """Adds jobs that come from another queue, each (by the name given with it) once; how many were new."""
    args = _IMPORT.args(kind=kind_of(keys), now_ms=now_ms, forget_before_ms=now_ms - forget_ms)
    for name, one in jobs:
        args += (name, "" if one.due_ms is None else one.due_ms, one.text)
    script_keys = _IMPORT.keys(keys, jobs=jobs_key(keys), arrivals=keys.toril("arrivals"))
    return once(keys, _IMPORT.call(script_keys, args, int), calls)


def is_known(arrival: str) -> Command[bool]:
    """Whether an arrival has been written down under this key."""
    return plain(bool, "EXISTS", arrival)


def count_schedulers(keys: QueueKeys) -> Command[int]:
    """How many schedulers and repeatable jobs a BullMQ queue has."""
    return plain(int, "ZCARD", keys.repeat)


def has_children(keys: QueueKeys, job_id: str) -> Command[bool]:
    """Whether a job has children, finished or not."""
    kin = (
        keys.dependencies(job_id),
        keys.processed(job_id),
        keys.ignored_failures(job_id),
        keys.unsuccessful(job_id),
    )
    return plain(bool, "EXISTS", *kin)


def delayed_until(keys: QueueKeys, job_id: str) -> Command[int | None]:
    """When a delayed job is due (ms); None when it is not delayed any more."""
    return plain(_due, "ZSCORE", keys.delayed, job_id)


def _due(score: bytes | float | None) -> int | None:
    return (
        None if score is None else int(float(score) // 4096)
    )  # the lower bits keep jobs of one millisecond apart
