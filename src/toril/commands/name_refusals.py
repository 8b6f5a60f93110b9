"""Delaying waiting jobs whose names no worker knows, before they are fetched.

Guarantee: a bounded call. It leaves what fetching and delaying these jobs one by one would leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from toril.commands.command import Command, Reply, plain
from toril.commands.own_script import OwnScript
from toril.protocol.keys import QueueKeys
from toril.protocol.refusals import FIRST_DELAY, GIVE_UP_AFTER, JOB_FIELD, LONGEST_DELAY

_REFUSE = OwnScript(
    "refuse_names",
    keys="wait delayed meta events marker announced",
    args="base now_ms limit factor first_ms longest_ms give_up_ms field",
    each="known",
)


@dataclass(frozen=True, slots=True)
class RefusedNames:
    """What one call did."""

    examined: int = 0  # jobs
    counts: Mapping[str, int] = field(default_factory=dict)  # jobs that were delayed, by name

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def refuse_names(
    keys: QueueKeys, known: Iterable[str], *, limit: int, factor: float, now_ms: int
) -> Command[RefusedNames]:
    """Delays the jobs among the next `limit` waiting ones whose names are neither `known` nor announced by others."""
    args = _REFUSE.args(
        base=keys.base,
        now_ms=now_ms,
        limit=limit,
        factor=factor,
        first_ms=round(FIRST_DELAY * 1000),
        longest_ms=round(LONGEST_DELAY * 1000),
        give_up_ms=round(GIVE_UP_AFTER * 1000),
        field=JOB_FIELD,
    )
    return _REFUSE.call(_REFUSE.keys(keys, announced=keys.toril("names")), [*args, *known], _refused)


def reporting_workers(keys: QueueKeys) -> Command[list[str]]:
    """Returns the ids of the workers that publish reports, and with them the names of their handlers."""
    return plain(_worker_ids, "ZRANGE", keys.toril("workers"), 0, -1)


def _worker_ids(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _refused(reply: list[Reply]) -> RefusedNames:
    pairs = zip(reply[1::2], reply[2::2], strict=True)
    return RefusedNames(int(reply[0]), {name.decode(errors="replace"): int(count) for name, count in pairs})
