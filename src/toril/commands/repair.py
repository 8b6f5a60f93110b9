"""Mending what other programs left behind: ids of jobs without data, jobs that are in no list.

Guarantee: the server looks again, in the same step, whether there is anything to mend; a job that is where it belongs
is left alone.
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
_REMOVE_GHOST = OwnScript("remove_ghost", keys="wait paused prioritized delayed job", args="job_id")


def put_back(keys: QueueKeys, job_id: str, *, now_ms: int) -> Command[str]:
    """Puts a job that is in no list back where it belongs; the name of that state, empty when it was not lost."""
    args = _PUT_BACK.args(job_id=job_id, now_ms=now_ms)
    return once(keys, _PUT_BACK.call(_PUT_BACK.keys(keys, job=keys.job(job_id)), args, _text))


def remove_ghost(keys: QueueKeys, job_id: str) -> Command[bool]:
    """Takes an id without a job out of the places where jobs wait; False when it has a job, or is gone."""
    script_keys = _REMOVE_GHOST.keys(keys, job=keys.job(job_id))
    return once(keys, _REMOVE_GHOST.call(script_keys, _REMOVE_GHOST.args(job_id=job_id), bool))


def _text(reply: bytes) -> str:
    return reply.decode()
