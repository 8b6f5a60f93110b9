"""Delaying waiting jobs whose names no worker knows, before they are fetched, on every kind of queue.

Guarantee: a bounded call. It leaves what fetching and delaying these jobs one by one would leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from toril.commands.command import Arg, Command, Reply, plain
from toril.commands.envelopes import EnvelopeKeys
from toril.commands.own_script import OwnScript
from toril.protocol.keys import RETURNED_CONSUMER, ListKeys, QueueKeys
from toril.protocol.refusals import FIRST_DELAY, GIVE_UP_AFTER, JOB_FIELD, LONGEST_DELAY, META_FIELD

_REFUSE = OwnScript(
    "refuse_names",
    keys="wait delayed meta events marker announced",
    args="base now_ms limit factor first_ms longest_ms give_up_ms field",
    each="known",
)
_DELAYS = "factor first_ms longest_ms give_up_ms"
_REFUSE_LIST = OwnScript(
    "list_refuse_names",
    keys="jobs scheduled stalls announced",
    args=f"now_ms limit max_bytes max_attempts meta_field {_DELAYS}",
    each="known",
)
_REFUSE_STREAM = OwnScript(
    "stream_refuse_names",
    keys="stream scheduled announced",
    args=f"consumer_group returned_consumer now_ms limit max_bytes max_attempts meta_field {_DELAYS}",
    each="known",
)
# Envelopes of so many bytes are examined in one call, whatever their number: some milliseconds of the server's time.
EXAMINED_BYTES: Final = 4 * 1024 * 1024


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
        field=JOB_FIELD,
        **_delays(factor),
    )
    return _REFUSE.call(_REFUSE.keys(keys, announced=keys.toril("names")), [*args, *known], _refused)


def refuse_envelope_names(
    keys: EnvelopeKeys,
    known: Iterable[str],
    *,
    limit: int,
    factor: float,
    now_ms: int,
    max_attempts: int | None = None,
) -> Command[RefusedNames]:
    """The same for a list or stream queue: the jobs are scheduled. `max_attempts` replaces that of the jobs."""
    shared: dict[str, Arg] = {
        "now_ms": now_ms,
        "limit": limit,
        "max_bytes": EXAMINED_BYTES,
        "max_attempts": "" if max_attempts is None else max_attempts,
        "meta_field": META_FIELD,
        **_delays(factor),
    }
    announced = keys.toril("names")
    if isinstance(keys, ListKeys):
        script_keys = _REFUSE_LIST.keys(
            keys, jobs=keys.queue, stalls=keys.toril("stalls"), announced=announced
        )
        return _REFUSE_LIST.call(script_keys, [*_REFUSE_LIST.args(**shared), *known], _refused)
    args = _REFUSE_STREAM.args(
        consumer_group=keys.consumer_group, returned_consumer=RETURNED_CONSUMER, **shared
    )
    return _REFUSE_STREAM.call(_REFUSE_STREAM.keys(keys, announced=announced), [*args, *known], _refused)


def _delays(factor: float) -> dict[str, Arg]:
    return {
        "factor": factor,
        "first_ms": round(FIRST_DELAY * 1000),
        "longest_ms": round(LONGEST_DELAY * 1000),
        "give_up_ms": round(GIVE_UP_AFTER * 1000),
    }


def reporting_workers(keys: QueueKeys) -> Command[list[str]]:
    """Returns the ids of the workers that publish reports, and with them the names of their handlers."""
    return plain(_worker_ids, "ZRANGE", keys.toril("workers"), 0, -1)


def _worker_ids(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _refused(reply: list[Reply]) -> RefusedNames:
    pairs = zip(reply[1::2], reply[2::2], strict=True)
    return RefusedNames(int(reply[0]), {name.decode(errors="replace"): int(count) for name, count in pairs})
