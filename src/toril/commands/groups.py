"""The weights and the limits of the groups of a queue.

Guarantee: setting something twice has the same effect as setting it once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from toril.commands.command import Command, Replay, Reply, no_value, plain
from toril.commands.own_script import OwnScript
from toril.protocol.group_limits import GroupLimits
from toril.protocol.keys import QueueKeys

_SWEEP = OwnScript(
    "group_sweep",
    keys="wait active prioritized events delayed paused meta pc marker",
    args="base group limits is_paused",
)
_PAGE = OwnScript("group_page", keys="jobs", args="base cursor count registers")
# Jobs that one call looks at: some milliseconds of the server's time.
_JOBS_PER_PAGE: Final = 1000
# What the script takes for limits that are removed.
_REMOVE = "-"
# The limits of all groups without limits of their own stand under this name, which no group has.
_ALL_GROUPS = ""


Place = Literal["prioritized", "delayed", "active"]


@dataclass(frozen=True, slots=True)
class GroupPage:
    """The groups of some jobs of a queue."""

    cursor: str  # of the next page; "0" when this was the last
    jobs: dict[str, tuple[int, int]]  # by group: jobs, and how many of these are held


def set_weight(keys: QueueKeys, group: str, weight: float | None) -> Command[None]:
    """Sets how many jobs of a group are served while one of a group of weight 1 is; None means 1."""
    weights = _key(keys)
    if weight is None:
        return plain(no_value, "HDEL", weights, group)
    return plain(no_value, "HSET", weights, group, weight)


def get_weights(keys: QueueKeys) -> Command[dict[str, float]]:
    """Returns the weights that were set, by group."""
    return plain(_weights, "HGETALL", _key(keys))


def set_limits(keys: QueueKeys, group: str | None, limits: GroupLimits | None) -> Command[int]:
    """Sets the limits of a group, or of all groups without limits of their own; None removes them."""
    return _sweep(keys, group or _ALL_GROUPS, limits=_REMOVE if limits is None else limits.to_wire())


def set_paused(keys: QueueKeys, group: str, *, paused: bool) -> Command[int]:
    """Pauses or resumes a group."""
    return _sweep(keys, group, is_paused="1" if paused else "0")


def sweep(keys: QueueKeys) -> Command[int]:
    """Checks the slots of groups against the active jobs; returns how many were freed."""
    return _sweep(keys, _ALL_GROUPS)


def _sweep(keys: QueueKeys, group: str, *, limits: str = "", is_paused: str = "") -> Command[int]:
    args = _SWEEP.args(base=keys.base, group=group, limits=limits, is_paused=is_paused)
    return _SWEEP.call(_SWEEP.keys(keys), args, int, Replay.SAFE)


def get_limits(keys: QueueKeys) -> Command[dict[str | None, GroupLimits]]:
    """Returns the limits that were set, by group; those of all groups under None."""
    return plain(_limits, "HGETALL", keys.toril("group-limits"))


def get_paused(keys: QueueKeys) -> Command[set[str]]:
    """Returns the groups that are paused."""
    return plain(_texts, "SMEMBERS", keys.toril("group-paused"))


def count_page(keys: QueueKeys, place: Place, cursor: str, *, registers: bool = False) -> Command[GroupPage]:
    """Counts some of the jobs in one place by group; `registers` enters them for the maximum size."""
    jobs = {"prioritized": keys.prioritized, "delayed": keys.delayed, "active": keys.active}[place]
    args = _PAGE.args(base=keys.base, cursor=cursor, count=_JOBS_PER_PAGE, registers="1" if registers else "")
    return _PAGE.call((jobs,), args, _page, Replay.SAFE)


def _page(reply: list[Reply]) -> GroupPage:
    return GroupPage(reply[0].decode(), dict(_counted(reply[1:])))


def _counted(flat: list[Reply]) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, jobs, held in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        yield name.decode(errors="replace"), (jobs, held)


def count_holding(keys: QueueKeys) -> Command[int]:
    """Returns how many groups hold jobs."""
    return plain(int, "SCARD", keys.toril("group-holding"))


def _limits(reply: list[bytes]) -> dict[str | None, GroupLimits]:
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {group.decode(errors="replace") or None: GroupLimits.from_wire(text) for group, text in pairs}


def _texts(reply: list[bytes]) -> set[str]:
    return {one.decode(errors="replace") for one in reply}


def _weights(reply: list[bytes]) -> dict[str, float]:
    """What other programs stored and is no weight has no effect in the script, and is left out."""
    weights: dict[str, float] = {}
    for group, weight in zip(reply[::2], reply[1::2], strict=True):
        with contextlib.suppress(ValueError):
            value = float(weight)
            if 0 < value < math.inf:
                weights[group.decode(errors="replace")] = value
    return weights


def _key(keys: QueueKeys) -> str:
    return keys.toril("group-weights")
