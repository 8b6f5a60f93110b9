"""Removing many jobs in bounded calls: `clean` removes the old ones of a state, `drain` those that wait.

Guarantee: a call looks at a bounded number of jobs and has an effect once (`commands/once.py`). The next call of a
clean begins behind the jobs that were kept so far, the next call of a drain at the cursor of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from toril.commands.command import Command, Reply, call, no_value
from toril.commands.library import official
from toril.commands.once import REMEMBERED_MS, Calls
from toril.commands.own_script import OwnScript
from toril.protocol.keys import QueueKeys

CleanState = Literal["completed", "failed", "wait", "paused", "active", "delayed", "prioritized"]

_KEYS: Final = "source events repeat_set work work_events"
_ARGS: Final = "base before_ms limit state skip"
_CLEAN_LIST = OwnScript("clean_list", keys=_KEYS, args=_ARGS)
_CLEAN_SET = OwnScript("clean_set", keys=_KEYS, args=_ARGS)
_DRAIN = OwnScript(
    "drain",
    keys="wait paused delayed prioritized repeat_set events work_list arrivals pc",
    args="base limit remove_delayed arrivals_ms cursor",
)


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


@dataclass(frozen=True, slots=True)
class DrainStep:
    """How many jobs one call of a drain removed, and where the next one goes on."""

    removed: int
    cursor: bytes  # empty at the end
    # Delayed jobs may be left: events were trimmed before they were read, so it is not known which jobs are new.
    left_delayed: bool = False
    unremovable: list[str] = field(default_factory=list)  # ids of jobs at which the scripts of BullMQ fail


def drain(
    keys: QueueKeys, *, most: int, delayed: bool = False, cursor: bytes = b"", calls: Calls | None = None
) -> Command[DrainStep]:
    """Removes up to `most` of the jobs that waited (and, if asked, were delayed) when the drain began.

    `cursor` is from the reply to the call before; without it a drain begins. Active and finished jobs stay,
    and so do the next runs of schedulers.
    """
    calls = calls or Calls(keys)
    script_keys = _DRAIN.keys(
        keys,
        repeat_set=keys.repeat,
        work_list=keys.toril(f"drain:{calls.client}:jobs"),
        arrivals=keys.toril(f"drain:{calls.client}:arrivals"),
    )
    args = _DRAIN.args(
        base=keys.base,
        limit=most,
        remove_delayed="1" if delayed else "0",
        arrivals_ms=REMEMBERED_MS,
        cursor=cursor,
    )
    return calls.once(_DRAIN.call(script_keys, args, _drained))


def _drained(reply: list[Reply]) -> DrainStep:
    return DrainStep(int(reply[0]), reply[1], bool(reply[2]), _ids(reply[3]))


def official_drain(keys: QueueKeys, *, delayed: bool = False) -> Command[None]:
    """The official drain in one call, for comparison; do not use it on a large queue.

    It removes the next run of a scheduler from its place when other jobs wait behind it.
    """
    return call(
        official("drain"),
        (keys.wait, keys.paused, keys.delayed, keys.prioritized, keys.repeat),
        [keys.base, "1" if delayed else "0"],
        no_value,
    )
