"""Removing old jobs of a state, in bounded calls.

Guarantee: a call looks at a bounded number of jobs, removes the old ones among them, and has an effect once
(`commands/once.py`). The caller passes the number of jobs that were kept so far, and the next call goes on behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from toril.commands.command import Command, Reply
from toril.commands.once import Calls
from toril.commands.own_script import OwnScript
from toril.protocol.keys import QueueKeys

CleanState = Literal["completed", "failed", "wait", "paused", "active", "delayed", "prioritized"]

_KEYS: Final = "source events repeat_set work work_events"
_ARGS: Final = "base before_ms limit state skip"
_CLEAN_LIST = OwnScript("clean_list", keys=_KEYS, args=_ARGS)
_CLEAN_SET = OwnScript("clean_set", keys=_KEYS, args=_ARGS)


@dataclass(frozen=True, slots=True)
class CleanStep:
    """What one call of a clean did."""

    removed: list[str]  # ids
    examined: int  # jobs, those that were kept included; fewer than asked for at the end
    unremovable: list[str]  # ids of jobs at which the scripts of BullMQ fail; they were kept


def clean(
    keys: QueueKeys,
    state: CleanState,
    *,
    before_ms: int,
    limit: int,
    skip: int = 0,
    calls: Calls | None = None,
) -> Command[CleanStep]:
    """Removes the jobs older than `before_ms` among `limit` jobs of a state, behind the first `skip`.

    The first jobs are those that workers fetch first.
    """
    calls = calls or Calls(keys)
    script = _CLEAN_LIST if state in ("wait", "paused", "active") else _CLEAN_SET
    own_keys = script.keys(
        keys,
        source=keys.base + state,
        repeat_set=keys.repeat,
        work=keys.toril(f"clean:{calls.client}"),
        work_events=keys.toril(f"clean:{calls.client}:events"),
    )
    own_args = script.args(base=keys.base, before_ms=before_ms, limit=limit, state=state, skip=skip)
    return calls.once(script.call(own_keys, own_args, _cleaned))


def _cleaned(reply: list[Reply]) -> CleanStep:
    return CleanStep(_ids(reply[0]), int(reply[1]), _ids(reply[2]))


def _ids(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]
