"""Repairs of what other programs left: ids of jobs without a hash, jobs that are in no list or set.

Guarantee: the server checks in the same step whether there is anything to repair; other jobs are not changed.
"""

from __future__ import annotations

from toril.commands.command import Command
from toril.commands.once import once
from toril.commands.own_script import OwnScript
from toril.protocol.keys import QueueKeys

_PUT_BACK = OwnScript(
    "put_back",
    keys="wait paused active prioritized delayed completed failed waiting_children meta events marker job",
    args="job_id now_ms",
)
_REMOVE_ORPHAN_ID = OwnScript("remove_orphan_id", keys="wait paused prioritized delayed job", args="job_id")


def put_back(keys: QueueKeys, job_id: str, *, now_ms: int) -> Command[str]:
    """Puts a job that is in no list or set back; returns its state, empty when there was nothing to repair."""
    args = _PUT_BACK.args(job_id=job_id, now_ms=now_ms)
    return once(keys, _PUT_BACK.call(_PUT_BACK.keys(keys, job=keys.job(job_id)), args, _text))


def remove_orphan_id(keys: QueueKeys, job_id: str) -> Command[bool]:
    """Removes the id of a job without a hash from where jobs wait; returns False when it has a hash."""
    script_keys = _REMOVE_ORPHAN_ID.keys(keys, job=keys.job(job_id))
    return once(keys, _REMOVE_ORPHAN_ID.call(script_keys, _REMOVE_ORPHAN_ID.args(job_id=job_id), bool))


def _text(reply: bytes) -> str:
    return reply.decode()
