"""Commands for moving jobs between queues.

Guarantee: a job that is sent again is added once, for as long as its arrival is recorded.
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


def import_jobs(
    keys: EnvelopeKeys,
    jobs: Sequence[tuple[str, EnvelopeToAdd]],
    *,
    now_ms: int,
    forget_ms: int,
    calls: Calls | None = None,
) -> Command[int]:
    """Adds jobs from another queue, each once by the name given with it; returns how many were new."""
    args = _IMPORT.args(kind=kind_of(keys), now_ms=now_ms, forget_before_ms=now_ms - forget_ms)
    for name, one in jobs:
        args += (name, "" if one.due_ms is None else one.due_ms, one.text)
    script_keys = _IMPORT.keys(keys, jobs=jobs_key(keys), arrivals=keys.toril("arrivals"))
    return once(keys, _IMPORT.call(script_keys, args, int), calls)


def has_arrived(arrival: str) -> Command[bool]:
    """Returns whether an arrival is recorded under this key."""
    return plain(bool, "EXISTS", arrival)


def count_schedulers(keys: QueueKeys) -> Command[int]:
    """Returns the number of schedulers and repeatable jobs of a BullMQ queue."""
    return plain(int, "ZCARD", keys.repeat)


def has_children(keys: QueueKeys, job_id: str) -> Command[bool]:
    """Returns whether a job has children, finished or not."""
    children = (
        keys.dependencies(job_id),
        keys.processed(job_id),
        keys.ignored_failures(job_id),
        keys.unsuccessful(job_id),
    )
    return plain(bool, "EXISTS", *children)


def delayed_until(keys: QueueKeys, job_id: str) -> Command[int | None]:
    """Returns when a delayed job is due (ms); None when it is not delayed any more."""
    return plain(_due, "ZSCORE", keys.delayed, job_id)


def _due(score: bytes | float | None) -> int | None:
    # The lower bits number the jobs of one millisecond.
    return None if score is None else int(float(score) // 4096)
