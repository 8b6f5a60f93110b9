"""Changing jobs and queues: one typed function for each official script that an operator or a handler may call.

Guarantee: a refusal is raised as an error of `toril.errors`, never returned as a number. A command whose second run
would do or return something else has an effect once: repeated after a lost reply it returns the reply to the first run
(`commands/once.py`). A caller of many commands in a row passes `calls`, so that the server remembers few replies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from toril.commands.command import Arg, Command, Replay, Reply, call, no_value, plain
from toril.commands.library import official
from toril.commands.once import Calls, once
from toril.commands.own_script import OwnScript
from toril.errors import JobLocked, obliterate_refusal, refusal
from toril.protocol.compatibility import META_VERSION
from toril.protocol.keys import QueueKeys

# Upstream's meaning of "all": the largest number of JavaScript, so that every delayed job counts as due.
_ALL_TIME = "1.7976931348623157e+308"

_MOVE_JOBS_TO_WAIT = OwnScript(
    "move_jobs_to_wait",
    keys="base events source wait paused meta active marker work",
    args="limit until_ms state skip",
)
_PAUSE = OwnScript("pause", keys="source target meta prioritized events delayed marker", args="action")
_REMOVE_JOB = OwnScript("remove_job", keys="job repeat_set", args="job_id children base")
_RETRY_FINISHED = OwnScript(
    "retry_finished",
    keys="job events source wait meta paused active marker",
    args="job_id push_command property state reset_attempts_made reset_attempts_started",
)
_REMOVE_ORPHANS = OwnScript(
    "remove_orphans",
    keys="completed failed delayed active wait paused waiting_children prioritized",
    args="base limit",
    each="job_id",
)
_REQUEUE_LEFT = OwnScript("requeue_left", keys="deduplication_key", args="base deduplication_id now_ms")
_OBLITERATE = OwnScript("obliterate", keys="meta base work work_events", args="limit force")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAttempts:
    """Which attempts of a job that is retried are forgotten: those that ended, those that began."""

    made: bool = False
    started: bool = False


KEEP_ATTEMPTS: Final = ResetAttempts()


def _refused(job_id: str, command: str, reply: int) -> None:
    if reply < 0:
        raise refusal(reply, job_id=job_id, command=command)


def update_data(keys: QueueKeys, job_id: str, data: bytes, calls: Calls | None = None) -> Command[None]:
    refused = functools.partial(_refused, job_id, "updateData")
    return once(keys, call(official("updateData"), (keys.job(job_id),), [data], refused), calls)


def update_progress(
    keys: QueueKeys, job_id: str, progress: bytes, calls: Calls | None = None
) -> Command[None]:
    command = call(
        official("updateProgress"),
        (keys.job(job_id), keys.events, keys.meta),
        [job_id, progress],
        functools.partial(_refused, job_id, "updateProgress"),
    )
    return once(keys, command, calls)


def add_log(
    keys: QueueKeys, job_id: str, line: str, *, keep: int | None, calls: Calls | None = None
) -> Command[int]:
    """Appends a line and keeps the newest `keep` (None: all, 0: none); returns the number of lines kept."""
    command = call(
        official("addLog"),
        (keys.job(job_id), keys.logs(job_id)),
        [job_id, line, "" if keep is None else keep or _KEEP_NONE],
        functools.partial(_logged, job_id),
    )
    return once(keys, command, calls)


# The script trims a list from -keep on; it takes 0 for "from the first", and this for "behind the last".
_KEEP_NONE: Final = -(2**31)


def _logged(job_id: str, reply: int) -> int:
    return 0 if reply == _KEEP_NONE else _counted(job_id, "addLog", reply)


def clear_logs(keys: QueueKeys, job_id: str, *, keep: int = 0) -> Command[None]:
    """Removes all lines but the newest `keep`."""
    if keep > 0:
        return plain(no_value, "LTRIM", keys.logs(job_id), -keep, -1)
    return plain(no_value, "DEL", keys.logs(job_id))


def _counted(job_id: str, command: str, reply: int) -> int:
    _refused(job_id, command, reply)
    return reply


def change_delay(keys: QueueKeys, job_id: str, *, delay_ms: int, now_ms: int) -> Command[None]:
    command = call(
        official("changeDelay"),
        (keys.delayed, keys.meta, keys.marker, keys.events),
        [delay_ms, now_ms, job_id, keys.job(job_id)],
        functools.partial(_refused, job_id, "changeDelay"),
    )
    return once(keys, command)


def change_priority(keys: QueueKeys, job_id: str, *, priority: int, lifo: bool = False) -> Command[None]:
    command = call(
        official("changePriority"),
        (keys.wait, keys.paused, keys.meta, keys.prioritized, keys.active, keys.pc, keys.marker),
        [priority, keys.base, job_id, 1 if lifo else 0],
        functools.partial(_refused, job_id, "changePriority"),
    )
    return once(keys, command)


def promote(keys: QueueKeys, job_id: str) -> Command[None]:
    """Moves one delayed job to wait."""
    command = call(
        official("promote"),
        (
            keys.delayed,
            keys.wait,
            keys.paused,
            keys.meta,
            keys.prioritized,
            keys.active,
            keys.pc,
            keys.events,
            keys.marker,
        ),
        [keys.base, job_id],
        functools.partial(_refused, job_id, "promote"),
    )
    return once(keys, command)


def reprocess(
    keys: QueueKeys,
    job_id: str,
    *,
    state: Literal["failed", "completed"] = "failed",
    lifo: bool = False,
    reset: ResetAttempts = KEEP_ATTEMPTS,
    calls: Calls | None = None,
) -> Command[None]:
    """Moves one finished job to wait."""
    property_name = "failedReason" if state == "failed" else "returnvalue"
    args: list[Arg] = [job_id, "RPUSH" if lifo else "LPUSH", property_name, state]
    source = keys.failed if state == "failed" else keys.completed
    script_keys = _RETRY_FINISHED.keys(keys, job=keys.job(job_id), source=source)
    refused = functools.partial(_refused, job_id, "reprocessJob")
    args += ["1" if reset.made else "0", "1" if reset.started else "0"]
    return once(keys, _RETRY_FINISHED.call(script_keys, args, refused), calls)


@dataclass(frozen=True, slots=True)
class MoveStep:
    """What one call that moves jobs to wait did."""

    moved: int
    more: bool  # more jobs may be left
    unmovable: list[str] = field(default_factory=list)  # ids whose key is no hash: they stay


def move_jobs_to_wait(
    keys: QueueKeys,
    state: Literal["failed", "completed", "delayed"],
    *,
    count: int,
    until_ms: int | None = None,
    skip: int = 0,
    calls: Calls | None = None,
) -> Command[MoveStep]:
    """Moves up to `count` finished or delayed jobs to wait, behind the first `skip`."""
    calls = calls or Calls(keys)
    source = {"failed": keys.failed, "completed": keys.completed, "delayed": keys.delayed}[state]
    args = _MOVE_JOBS_TO_WAIT.args(
        limit=count, until_ms=_ALL_TIME if until_ms is None else until_ms, state=state, skip=skip
    )
    script_keys = _MOVE_JOBS_TO_WAIT.keys(keys, source=source, work=keys.toril(f"move:{calls.client}"))
    return calls.once(_MOVE_JOBS_TO_WAIT.call(script_keys, args, _moved))


def _moved(reply: list[Reply]) -> MoveStep:
    return MoveStep(int(reply[0]), bool(reply[1]), _ids(reply[2]))


def remove(keys: QueueKeys, job_id: str, *, children: bool = True) -> Command[None]:
    """Removes a job and, if asked, its children; raises `JobLocked` for an active job."""
    args = _REMOVE_JOB.args(job_id=job_id, children=1 if children else 0, base=keys.base)
    script_keys = _REMOVE_JOB.keys(keys, job=keys.job(job_id), repeat_set=keys.repeat)
    return once(keys, _REMOVE_JOB.call(script_keys, args, functools.partial(_removed, job_id)))


def _removed(job_id: str, reply: int) -> None:
    _refused(job_id, "removeJob", reply)
    if reply == 0:
        raise JobLocked(job_id=job_id, command="removeJob")


def pause(keys: QueueKeys) -> Command[None]:
    return _pause_or_resume(keys, keys.wait, keys.paused, "paused")


def resume(keys: QueueKeys) -> Command[None]:
    return _pause_or_resume(keys, keys.paused, keys.wait, "resumed")


def _pause_or_resume(keys: QueueKeys, source: str, target: str, action: str) -> Command[None]:
    script_keys = _PAUSE.keys(keys, source=source, target=target)
    return once(keys, _PAUSE.call(script_keys, _PAUSE.args(action=action), no_value))


def obliterate(
    keys: QueueKeys, *, count: int, force: bool = False, calls: Calls | None = None
) -> Command[bool]:
    """Removes up to `count` jobs of a paused queue; returns True when some are left, and another call must follow."""
    calls = calls or Calls(keys)
    args = _OBLITERATE.args(limit=count, force="force" if force else "")
    work = keys.toril(f"obliterate:{calls.client}")
    script_keys = _OBLITERATE.keys(keys, work=work, work_events=f"{work}:events")
    return calls.once(_OBLITERATE.call(script_keys, args, _obliterated))


def _obliterated(reply: int) -> bool:
    if reply < 0:
        raise obliterate_refusal(reply)
    return reply == 1


def remove_orphans(
    keys: QueueKeys, job_ids: Sequence[str], *, limit: int | None = None, calls: Calls | None = None
) -> Command[list[str]]:
    """Removes those of these jobs that are in no list, at most `limit`; returns their ids."""
    most = len(job_ids) if limit is None else limit
    args = [*_REMOVE_ORPHANS.args(base=keys.base, limit=most), *job_ids]
    return once(keys, _REMOVE_ORPHANS.call(_REMOVE_ORPHANS.keys(keys), args, _ids), calls)


def _ids(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def publish_event(keys: QueueKeys, name: str, fields: Mapping[str, str], *, max_len: int) -> Command[str]:
    """Adds an event of the application to the stream; returns its id."""
    pairs = [part for pair in fields.items() for part in pair]
    command = plain(_text, "XADD", keys.events, "MAXLEN", "~", max_len, "*", "event", name, *pairs)
    return once(keys, command)


def _text(reply: bytes) -> str:
    return reply.decode()


def requeue_left(keys: QueueKeys, deduplication_id: str, *, now_ms: int) -> Command[str | None]:
    """Adds the job that was stored to follow another one, if that one has ended; returns its id."""
    args = _REQUEUE_LEFT.args(base=keys.base, deduplication_id=deduplication_id, now_ms=now_ms)
    return _REQUEUE_LEFT.call((keys.deduplication(deduplication_id),), args, _id_or_none, Replay.SAFE)


def _id_or_none(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode()


def remove_deduplication_key(keys: QueueKeys, deduplication_id: str) -> Command[bool]:
    """Removes a deduplication key; returns False when there is none."""
    return once(keys, plain(bool, "DEL", f"{keys.de}:{deduplication_id}"))


def remove_child_dependency(keys: QueueKeys, job_id: str, parent_key: str) -> Command[bool]:
    """Removes a job from its parent's children; returns False when it was none of them."""
    command = call(
        official("removeChildDependency"),
        (keys.base,),
        [keys.job(job_id), parent_key],
        functools.partial(_was_removed_from_parent, job_id),
    )
    return once(keys, command)


def _was_removed_from_parent(job_id: str, reply: int) -> bool:
    _refused(job_id, "removeChildDependency", reply)
    return reply == 0


def remove_unprocessed_children(keys: QueueKeys, job_id: str) -> Command[None]:
    script_keys = (keys.job(job_id), keys.meta)
    return once(keys, call(official("removeUnprocessedChildren"), script_keys, [keys.base, job_id], no_value))


def set_meta(
    keys: QueueKeys, *, version: str = META_VERSION, events_max_len: int | None = None
) -> tuple[Command[None], ...]:
    """Writes version and event length into the meta hash; a field that exists stays, unless a length is given."""
    version_line = plain(no_value, "HSETNX", keys.meta, "version", version)
    if events_max_len is None:
        return version_line, plain(no_value, "HSETNX", keys.meta, "opts.maxLenEvents", 10_000)
    return version_line, plain(no_value, "HSET", keys.meta, "opts.maxLenEvents", events_max_len)


def set_global_concurrency(keys: QueueKeys, limit: int | None) -> Command[None]:
    """Limits how many jobs of this queue are active at once over all workers; None removes the limit."""
    if limit is None:
        return plain(no_value, "HDEL", keys.meta, "concurrency")
    return plain(no_value, "HSET", keys.meta, "concurrency", limit)


def set_global_rate_limit(keys: QueueKeys, limit: tuple[int, int] | None) -> Command[None]:
    """Limits the rate over all workers to (jobs, span in ms); None removes the limit."""
    if limit is None:
        return plain(no_value, "HDEL", keys.meta, "max", "duration")
    return plain(no_value, "HSET", keys.meta, "max", limit[0], "duration", limit[1])


def start_rate_limit(keys: QueueKeys, span_ms: int) -> Command[None]:
    """Stops all fetching for a while, as upstream's `rateLimit` does."""
    return plain(no_value, "SET", keys.limiter, 9007199254740991, "PX", span_ms)


def trim_events(keys: QueueKeys, max_len: int) -> Command[int]:
    """Trims the event stream; returns how many events were removed."""
    return once(keys, plain(int, "XTRIM", keys.events, "MAXLEN", "~", max_len))


def remove_rate_limit(keys: QueueKeys) -> Command[None]:
    """Allows fetching at once, as upstream's `removeRateLimitKey` does."""
    return plain(no_value, "DEL", keys.limiter)


def delete_keys(names: Sequence[str]) -> Command[int]:
    """Removes keys of one slot without blocking the server."""
    return plain(int, "UNLINK", *names)


def request_cancel(keys: QueueKeys, job_id: str, token: str, reason: str, expire_ms: int) -> Command[None]:
    """Requests that the worker of a job cancels it; the token of the lock identifies the attempt."""
    return plain(no_value, "SET", cancel_key(keys, job_id), f"{token}\n{reason}", "PX", expire_ms)


def withdraw_cancel(keys: QueueKeys, job_id: str) -> Command[None]:
    """Removes the request to cancel a job."""
    return plain(no_value, "DEL", cancel_key(keys, job_id))


def cancel_key(keys: QueueKeys, job_id: str) -> str:
    """Returns the key of a request to cancel a job; its value is token and reason."""
    return keys.toril(f"cancel:{job_id}")
