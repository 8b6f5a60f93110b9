"""Checkpoints of running jobs.

Guarantee: only the worker that has a job changes its checkpoint.
"""

from __future__ import annotations

import functools

from toril.commands.command import Command, Replay
from toril.commands.own_script import OwnScript
from toril.errors import refusal
from toril.protocol.keys import QueueKeys

_SAVE = OwnScript("save_checkpoint", keys="job lock active", args="job_id token value started")


def save_checkpoint(
    keys: QueueKeys, job_id: str, token: str, value: bytes, *, attempts_started: int
) -> Command[None]:
    """Stores the checkpoint of a job that is running; raises when another worker may have it."""
    args = _SAVE.args(job_id=job_id, token=token, value=value, started=attempts_started)
    script_keys = (keys.job(job_id), keys.lock(job_id), keys.active)
    return _SAVE.call(script_keys, args, functools.partial(_check, job_id), Replay.SAFE)


def _check(job_id: str, reply: int) -> None:
    if reply < 0:
        raise refusal(reply, job_id=job_id, command="saveCheckpoint")
