"""Mending what other programs left behind: ids of jobs without data, jobs that are in no list.

Guarantee: the server looks again, in the same step, whether there is anything to mend; a job that is where it belongs
is left alone.
"""

from __future__ import annotations

from toril.commands.command import Command, call
from toril.commands.library import own
from toril.commands.once import once
from toril.protocol.keys import QueueKeys


def put_back(keys: QueueKeys, job_id: str, *, now_ms: int) -> Command[str]:
    """Puts a job that is in no list back where it belongs; the name of that state, empty when it was not lost."""
    script_keys = (
        keys.wait,
        keys.paused,
        keys.active,
        keys.prioritized,
        keys.delayed,
        keys.completed,
        keys.failed,
        keys.waiting_children,
        keys.meta,
        keys.events,
        keys.marker,
        keys.job(job_id),
    )
    return once(keys, call(own("put_back"), script_keys, [job_id, now_ms], _text))


def remove_ghost(keys: QueueKeys, job_id: str) -> Command[bool]:
    """Takes an id without a job out of the places where jobs wait; False when it has a job, or is gone."""
    script_keys = (keys.wait, keys.paused, keys.prioritized, keys.delayed, keys.job(job_id))
    return once(keys, call(own("remove_ghost"), script_keys, [job_id], bool))


def _text(reply: bytes) -> str:
    return reply.decode()
