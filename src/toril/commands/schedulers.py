"""Job schedulers: factories that make the next job of a series when the last one begins.

Guarantee: there is at most one next job for each scheduler; a step that is repeated after a lost reply makes no
second one. A scheduler whose next job could not be made is noted, and can be taken up again from there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toril.commands.command import Arg, Command, Replay, call, plain
from toril.commands.library import official, own
from toril.commands.once import once
from toril.errors import MalformedValue, refusal
from toril.protocol.codec import pack, unpack
from toril.protocol.keys import QueueKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerToAdd:
    """A scheduler in the form the script takes it: options under BullMQ's names, times in milliseconds."""

    id: str
    name: str
    data: bytes
    options: Mapping[str, Any]  # of the jobs it makes
    repeat: Mapping[str, Any]  # pattern or every, tz, limit, startDate, endDate
    next_ms: int | None  # None: the script computes it from `every`
    now_ms: int
    carrier: str | None = None  # trace context for the next job; the template does not keep it

    def scheduler_options(self) -> dict[str, Any]:
        names = ("startDate", "endDate", "tz", "pattern", "every", "limit")
        return {"name": self.name, **{name: self.repeat[name] for name in names if name in self.repeat}}


def next_job_options(
    scheduler_id: str,
    options: Mapping[str, Any],
    repeat: Mapping[str, Any],
    *,
    next_ms: int | None,
    now_ms: int,
) -> dict[str, Any]:
    """The options of the next job of a series, as Node writes them; the script adds the rest."""
    # Jobs of the older kind of series bring a previous time and an offset of their own; Node drops both.
    kept = {name: value for name, value in options.items() if name != "prevMillis"}
    series = {name: value for name, value in repeat.items() if name != "offset"}
    following = {
        **kept,
        "repeat": {**series, "count": int(repeat.get("count") or 0) + 1},
        "timestamp": now_ms,
        "repeatJobKey": scheduler_id,
    }
    if next_ms is not None:
        following |= {"prevMillis": next_ms, "delay": max(0, next_ms - now_ms)}
    return following


def add_scheduler(keys: QueueKeys, scheduler: SchedulerToAdd) -> Command[tuple[str, int]]:
    """Makes or changes a scheduler and its next job; the value is the id of that job and its delay (ms)."""
    following = next_job_options(
        scheduler.id,
        scheduler.options,
        scheduler.repeat,
        next_ms=scheduler.next_ms,
        now_ms=scheduler.now_ms,
    )
    if scheduler.carrier is not None:
        following["tm"] = scheduler.carrier
    args: list[Arg] = [
        "" if scheduler.next_ms is None else scheduler.next_ms,
        pack(scheduler.scheduler_options()),
        scheduler.id,
        scheduler.data,
        pack(scheduler.options),
        pack(following),
        scheduler.now_ms,
        keys.base,
        "",
    ]
    decode = functools.partial(_scheduled, scheduler.id)
    return once(keys, call(own("add_scheduler"), (*_shared_keys(keys), keys.active), args, decode))


def _shared_keys(keys: QueueKeys) -> tuple[str, ...]:
    return (
        keys.repeat,
        keys.delayed,
        keys.wait,
        keys.paused,
        keys.meta,
        keys.prioritized,
        keys.marker,
        keys.id,
        keys.events,
        keys.pc,
    )


def _scheduled(scheduler_id: str, reply: Any) -> tuple[str, int]:
    if isinstance(reply, int):
        raise refusal(reply, job_id=scheduler_id, command="addJobScheduler")
    return reply[0].decode(), int(float(reply[1]))


def advance_scheduler(
    keys: QueueKeys,
    scheduler_id: str,
    *,
    job_id: str,
    data: bytes,
    options: Mapping[str, Any],
    next_ms: int | None,
    now_ms: int,
) -> Command[str | None]:
    """Makes the job after `job_id`; None when it exists already, or when the scheduler is gone or has gone on."""
    args: list[Arg] = [
        "" if next_ms is None else next_ms,
        scheduler_id,
        data,
        pack(options),
        now_ms,
        keys.base,
        job_id,
    ]
    return call(
        official("updateJobScheduler"),
        (*_shared_keys(keys), keys.job(job_id), keys.active),
        args,
        _id_or_none,
        Replay.SAFE,
    )


def _id_or_none(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenScheduler:
    """A scheduler whose next job could not be made: after which job, why, and what that job was."""

    id: str
    job_id: str
    reason: str
    since_ms: int
    data: bytes  # JSON
    opts: bytes  # JSON, as far as it can be read


def broken_key(keys: QueueKeys) -> str:
    """Scheduler's id → packed note, for those that cannot go on."""
    return keys.toril("broken-schedulers")


def note_broken(keys: QueueKeys, broken: BrokenScheduler) -> Command[None]:
    """Notes that a scheduler cannot go on, unless it is gone or has gone on."""
    note = {
        "job": broken.job_id,
        "reason": broken.reason,
        "since": broken.since_ms,
        "data": broken.data.decode(errors="replace"),  # as text: Lua reads no other bytes
        "opts": broken.opts.decode(errors="replace"),
    }
    args: list[Arg] = [broken.id, broken.job_id, pack(note)]
    return call(own("note_broken_scheduler"), (keys.repeat, broken_key(keys)), args, _nothing, Replay.SAFE)


def _nothing(_: Any) -> None:
    return None


def broken_schedulers(keys: QueueKeys) -> Command[list[BrokenScheduler]]:
    """Those that cannot go on."""
    return plain(_broken, "HGETALL", broken_key(keys))


def _broken(flat: list[bytes]) -> list[BrokenScheduler]:
    found: list[BrokenScheduler] = []
    for name, note in zip(flat[::2], flat[1::2], strict=True):
        try:
            fields = unpack(note)
            found.append(
                BrokenScheduler(
                    id=name.decode(),
                    job_id=fields["job"],
                    reason=fields["reason"],
                    since_ms=int(fields["since"]),
                    data=fields["data"].encode(),
                    opts=fields["opts"].encode(),
                )
            )
        except (MalformedValue, AttributeError, LookupError, TypeError, ValueError):
            continue  # another program's value under our key
    return found


def forget_broken(keys: QueueKeys, scheduler_id: str) -> Command[None]:
    """Takes a scheduler off the list of those that cannot go on."""
    return plain(_nothing, "HDEL", broken_key(keys), scheduler_id)


def revive_scheduler(keys: QueueKeys, step: Command[str | None]) -> Command[str | None]:
    """The step of `advance_scheduler` for a scheduler that was broken: its last job may be gone."""
    return call(own("revive_scheduler"), (*step.keys, broken_key(keys)), step.words, _id_or_none, Replay.SAFE)


def remove_scheduler(keys: QueueKeys, scheduler_id: str) -> Command[bool]:
    """Removes a scheduler and its next job; False when there is none."""
    script_keys = (keys.repeat, keys.delayed, keys.events)
    command = call(official("removeJobScheduler"), script_keys, [scheduler_id, keys.base], _was_there)
    return once(keys, command)


def _was_there(reply: int) -> bool:
    return reply == 0


Row = tuple[str, int]


def list_schedulers(
    keys: QueueKeys, *, start: int = 0, end: int = -1, ascending: bool = True
) -> Command[list[Row]]:
    """Ids of schedulers and when their next job is due (ms), soonest first."""
    return plain(_rows, "ZRANGE" if ascending else "ZREVRANGE", keys.repeat, start, end, "WITHSCORES")


def _rows(reply: list[bytes]) -> list[Row]:
    return [(reply[i].decode(), int(float(reply[i + 1]))) for i in range(0, len(reply), 2)]


def get_scheduler(keys: QueueKeys, scheduler_id: str) -> Command[dict[str, str]]:
    """The fields of a scheduler; empty when there is none."""
    return plain(_fields, "HGETALL", f"{keys.repeat}:{scheduler_id}")


def _fields(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def next_of(keys: QueueKeys, scheduler_id: str) -> Command[int | None]:
    """When the next job of a scheduler is due (ms)."""
    return plain(_score, "ZSCORE", keys.repeat, scheduler_id)


def _score(reply: bytes | None) -> int | None:
    return None if reply is None else int(float(reply))


def count_schedulers(keys: QueueKeys) -> Command[int]:
    return plain(int, "ZCARD", keys.repeat)
