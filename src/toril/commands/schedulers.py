"""Job schedulers: they add their next job when the last one begins.

Guarantee: there is at most one next job for each scheduler; a call that is repeated after a lost reply adds no second
one. A scheduler whose next job could not be added is recorded as broken, and can be resumed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from toril.commands.command import Command, Replay, Reply, call, no_value, plain
from toril.commands.envelopes import LATEST_MS
from toril.commands.library import official
from toril.commands.once import once
from toril.commands.own_script import OwnScript
from toril.errors import MalformedValue, refusal
from toril.protocol.codec import from_json, pack, to_json, unpack
from toril.protocol.json_types import JsonFields, JsonObject
from toril.protocol.keys import QueueKeys

# The keys that the scripts of schedulers share, in upstream's order.
_SHARED = "repeat_set delayed wait paused meta prioritized marker id_counter events pc"
_ADD = OwnScript(
    "add_scheduler",
    keys=f"{_SHARED} active",
    args="next_ms scheduler_options scheduler_id data template_options job_options now_ms base producer_id",
)
_RESUME = OwnScript(
    "resume_scheduler",
    keys=f"{_SHARED} job active broken_schedulers",
    args="next_ms scheduler_id data job_options now_ms base job_id",
)
_NOTE_BROKEN = OwnScript(
    "record_broken_scheduler", keys="repeat_set broken_schedulers", args="scheduler_id job_id note"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerToAdd:
    """A scheduler in the form the script takes it: options under BullMQ's names, times in milliseconds."""

    id: str
    name: str
    data: bytes
    options: JsonFields  # of the jobs it makes
    repeat: JsonFields  # pattern or every, tz, limit, startDate, endDate, offset
    next_ms: int | None  # None: the script computes it from `every`
    now_ms: int
    carrier: str | None = None  # trace context of the next job; it is not stored in the template

    def scheduler_options(self) -> JsonObject:
        names = ("startDate", "endDate", "tz", "pattern", "every", "limit", "offset")
        return {"name": self.name, **{name: self.repeat[name] for name in names if name in self.repeat}}


def next_job_options(
    scheduler_id: str,
    options: JsonFields,
    repeat: JsonFields,
    *,
    next_ms: int | None,
    now_ms: int,
) -> JsonObject:
    """Returns the options of the next scheduled run, as Node writes them; the script adds the rest."""
    # Repeatable jobs, which preceded schedulers, have a previous time and an offset; Node drops both.
    kept = {name: value for name, value in options.items() if name != "prevMillis"}
    repeat_options = {name: value for name, value in repeat.items() if name != "offset"}
    following = {
        **kept,
        "repeat": {**repeat_options, "count": int(repeat.get("count") or 0) + 1},
        "timestamp": now_ms,
        "repeatJobKey": scheduler_id,
    }
    if next_ms is not None:
        following |= {"prevMillis": next_ms, "delay": max(0, next_ms - now_ms)}
    return following


def add_scheduler(keys: QueueKeys, scheduler: SchedulerToAdd) -> Command[tuple[str, int]]:
    """Creates or changes a scheduler and its next job; returns the id of that job and its delay (ms)."""
    following = next_job_options(
        scheduler.id,
        scheduler.options,
        scheduler.repeat,
        next_ms=scheduler.next_ms,
        now_ms=scheduler.now_ms,
    )
    if scheduler.carrier is not None:
        following["tm"] = scheduler.carrier
    args = _ADD.args(
        next_ms="" if scheduler.next_ms is None else scheduler.next_ms,
        scheduler_options=pack(scheduler.scheduler_options()),
        scheduler_id=scheduler.id,
        data=scheduler.data,
        template_options=pack(scheduler.options),
        job_options=pack(following),
        now_ms=scheduler.now_ms,
        base=keys.base,
        producer_id="",
    )
    script_keys = _ADD.keys(keys, repeat_set=keys.repeat, id_counter=keys.id)
    return once(keys, _ADD.call(script_keys, args, functools.partial(_scheduled, scheduler.id)))


def _scheduled(scheduler_id: str, reply: Reply) -> tuple[str, int]:
    if isinstance(reply, int):
        raise refusal(reply, job_id=scheduler_id, command="addJobScheduler")
    return reply[0].decode(), int(float(reply[1]))


def advance_scheduler(
    keys: QueueKeys,
    scheduler_id: str,
    *,
    job_id: str,
    data: bytes,
    options: JsonFields,
    next_ms: int | None,
    now_ms: int,
) -> Command[str | None]:
    """Adds the job after `job_id`; returns None when it exists, or the scheduler was removed or has a later job."""
    args = _RESUME.args(
        next_ms="" if next_ms is None else next_ms,
        scheduler_id=scheduler_id,
        data=data,
        job_options=pack(options),
        now_ms=now_ms,
        base=keys.base,
        job_id=job_id,
    )
    script_keys = _RESUME.keys(
        keys,
        repeat_set=keys.repeat,
        id_counter=keys.id,
        job=keys.job(job_id),
        broken_schedulers=broken_key(keys),
    )
    # The official script takes the same, but for the last key.
    return call(official("updateJobScheduler"), script_keys[:-1], args, _id_or_none, Replay.SAFE)


def _id_or_none(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenScheduler:
    """A scheduler whose next job could not be added: the last job, and the reason."""

    id: str
    job_id: str
    reason: str
    since_ms: int
    data: bytes  # JSON
    opts: bytes  # JSON, as far as it can be read


def broken_key(keys: QueueKeys) -> str:
    """Returns the key of the hash of broken schedulers: id → packed note."""
    return keys.toril("broken-schedulers")


def record_broken(keys: QueueKeys, broken: BrokenScheduler) -> Command[None]:
    """Records a scheduler as broken, unless it was removed or has a later job."""
    note = {
        "job": broken.job_id,
        "reason": broken.reason,
        "since": broken.since_ms,
        "data": broken.data.decode(errors="replace"),  # as text: Lua reads no other bytes
        "opts": broken.opts.decode(errors="replace"),
    }
    args = _NOTE_BROKEN.args(scheduler_id=broken.id, job_id=broken.job_id, note=pack(note))
    return _NOTE_BROKEN.call((keys.repeat, broken_key(keys)), args, no_value, Replay.SAFE)


def broken_schedulers(keys: QueueKeys) -> Command[list[BrokenScheduler]]:
    """Returns the broken schedulers."""
    return plain(_broken, "HGETALL", broken_key(keys))


def _broken(flat: list[bytes]) -> list[BrokenScheduler]:
    found: list[BrokenScheduler] = []
    for name, note in zip(flat[::2], flat[1::2], strict=True):
        try:
            fields = unpack(note)
            found.append(
                BrokenScheduler(
                    id=name.decode(errors="replace"),
                    job_id=fields["job"],
                    reason=fields["reason"],
                    since_ms=int(fields["since"]),
                    data=fields["data"].encode(),
                    opts=fields["opts"].encode(),
                )
            )
        except (MalformedValue, AttributeError, LookupError, TypeError, ValueError):
            continue  # another program's value
    return found


def clear_broken(keys: QueueKeys, scheduler_id: str) -> Command[None]:
    """Removes a scheduler from the broken ones."""
    return plain(no_value, "HDEL", broken_key(keys), scheduler_id)


def resume_scheduler(keys: QueueKeys, step: Command[str | None]) -> Command[str | None]:
    """The call of `advance_scheduler` for a broken scheduler, whose last job may have been removed."""
    return _RESUME.call((*step.keys, broken_key(keys)), step.args, _id_or_none, Replay.SAFE)


def remove_scheduler(keys: QueueKeys, scheduler_id: str) -> Command[bool]:
    """Removes a scheduler and its next job; returns False when there is none."""
    script_keys = (keys.repeat, keys.delayed, keys.events)
    command = call(official("removeJobScheduler"), script_keys, [scheduler_id, keys.base], _was_there)
    return once(keys, command)


def _was_there(reply: int) -> bool:
    return reply == 0


Row = tuple[str, int]


def list_schedulers(
    keys: QueueKeys, *, start: int = 0, end: int = -1, ascending: bool = True
) -> Command[list[Row]]:
    """Returns ids of schedulers and when their next job is due (ms), soonest first."""
    return plain(_rows, "ZRANGE" if ascending else "ZREVRANGE", keys.repeat, start, end, "WITHSCORES")


def _rows(reply: list[bytes]) -> list[Row]:
    return [(reply[i].decode(errors="replace"), _score_ms(reply[i + 1])) for i in range(0, len(reply), 2)]


def _score_ms(score: bytes) -> int:
    """Returns a time in milliseconds; another program may have stored an infinite one."""
    return int(max(0.0, min(float(score), LATEST_MS)))


def get_scheduler(keys: QueueKeys, scheduler_id: str) -> Command[dict[str, str]]:
    """Returns the fields of a scheduler; empty when there is none."""
    return plain(_fields, "HGETALL", f"{keys.repeat}:{scheduler_id}")


def _fields(flat: list[bytes]) -> dict[str, str]:
    texts = [one.decode(errors="replace") for one in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def next_run_ms(keys: QueueKeys, scheduler_id: str) -> Command[int | None]:
    """Returns when the next job of a scheduler is due (ms)."""
    return plain(_score, "ZSCORE", keys.repeat, scheduler_id)


def _score(reply: bytes | None) -> int | None:
    return None if reply is None else int(float(reply))


def count_schedulers(keys: QueueKeys) -> Command[int]:
    return plain(int, "ZCARD", keys.repeat)


def declared_schedulers(keys: QueueKeys, owner: str) -> Command[set[str]]:
    """Returns the ids of the schedulers that an application declared at its last start."""
    return plain(_ids, "GET", keys.toril(f"schedules:{owner}"))


def _ids(reply: bytes | None) -> set[str]:
    return set() if reply is None else set(from_json(reply, list[str], field="schedules"))


def set_declared_schedulers(keys: QueueKeys, owner: str, ids: Iterable[str]) -> Command[None]:
    """Stores the ids of the schedulers that an application declares."""
    return plain(lambda _: None, "SET", keys.toril(f"schedules:{owner}"), to_json(sorted(ids)))
