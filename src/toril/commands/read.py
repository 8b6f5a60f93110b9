"""Reading a queue: counts, lists, single jobs, logs, metrics and events, each as one command.

Guarantee: nothing here changes a queue, so every command may be repeated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toril.commands.command import Arg, Command, Replay, Reply, call, plain
from toril.commands.library import official
from toril.protocol.keys import AnyKeys, QueueKeys

COUNTED_STATES = (
    "wait",
    "active",
    "completed",
    "failed",
    "delayed",
    "prioritized",
    "paused",
    "waiting-children",
)


def get_counts(keys: QueueKeys) -> Command[dict[str, int]]:
    """Returns the number of jobs by state, for all eight states of upstream."""
    return call(
        official("getCounts"), (keys.base,), COUNTED_STATES, functools.partial(_by_state), Replay.SAFE
    )


def _by_state(reply: list[int]) -> dict[str, int]:
    return dict(zip(COUNTED_STATES, reply, strict=True))


def lengths(keys: QueueKeys) -> tuple[Command[int], ...]:
    """Returns the number of jobs of each state, one Redis command for each: the keys may be in different slots."""
    lists = (keys.wait, keys.paused, keys.active)
    sets = (keys.prioritized, keys.delayed, keys.waiting_children, keys.completed, keys.failed)
    return (*(plain(int, "LLEN", key) for key in lists), *(plain(int, "ZCARD", key) for key in sets))


def count_ended(
    keys: QueueKeys, state: Literal["failed", "completed"], until_ms: int | None = None
) -> Command[int]:
    """Returns the number of jobs that completed or failed, up to a time if given."""
    if until_ms is None:
        return plain(int, "ZCARD", keys.base + state)
    return plain(int, "ZCOUNT", keys.base + state, "-inf", until_ms)


def scan_keys(
    keys: AnyKeys, cursor: str, beginnings: Sequence[str], *, step: int = 1000
) -> Command[tuple[str, list[str]]]:
    """One step of a scan for the keys of a queue that begin in one of these ways; the last cursor is `0`."""
    common = beginnings[0] if len(beginnings) == 1 else keys.base
    pattern = re.sub(r"([\\\[\]*?^])", r"\\\1", common) + "*"
    args = ("SCAN", cursor, "MATCH", pattern, "COUNT", step)
    decode = functools.partial(_scanned, tuple(beginnings))
    return Command(args, decode, keys=(keys.toril(""),), replay=Replay.SAFE)


def _scanned(beginnings: tuple[str, ...], reply: list[Reply]) -> tuple[str, list[str]]:
    names = [one.decode(errors="replace") for one in reply[1]]
    return reply[0].decode(), [one for one in names if one.startswith(beginnings)]


def get_ranges(
    keys: QueueKeys, states: Sequence[str], *, start: int = 0, end: int = -1, ascending: bool = False
) -> Command[list[str]]:
    """Returns the ids of jobs in these states, each id once, newest first by default."""
    names = ["wait" if state == "waiting" else state for state in states]
    return call(
        official("getRanges"),
        (keys.base,),
        [start, end, "1" if ascending else "0", *names],
        functools.partial(_flat_ids, names, ascending),
        Replay.SAFE,
    )


def _flat_ids(states: Sequence[str], ascending: bool, reply: list[list[bytes]]) -> list[str]:
    ids: dict[str, None] = {}
    for state, part in zip(states, reply, strict=True):
        # Lists come newest first whatever the range; for ascending order they are reversed.
        ordered = reversed(part) if ascending and state in _LISTS else part
        ids.update((one.decode(errors="replace"), None) for one in ordered)
    return list(ids)


_LISTS = frozenset({"wait", "paused", "active"})


def get_job(keys: QueueKeys, job_id: str) -> Command[list[bytes]]:
    """Returns the flat fields of a job's hash; empty when there is no such job."""
    return plain(flat_fields, "HGETALL", keys.job(job_id))


def flat_fields(reply: Reply) -> list[bytes]:
    """Names and values in turns, from a map or a list of both protocols."""
    if isinstance(reply, dict):
        return [value for pair in reply.items() for value in pair]
    return list(reply or ())


def get_lock(keys: QueueKeys, job_id: str) -> Command[str | None]:
    """Returns the token of a job's lock; None when it is not locked."""
    return plain(_text_or_none, "GET", keys.lock(job_id))


def _text_or_none(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace")


def get_cancellations(keys: QueueKeys, job_ids: Sequence[str]) -> Command[list[tuple[str, str] | None]]:
    """Returns for each job the lock token of the attempt to cancel and the reason, or None."""
    wanted = (keys.toril(f"cancel:{job_id}") for job_id in job_ids)
    return plain(lambda reply: [_cancellation(one) for one in reply], "MGET", *wanted)


def _cancellation(reply: bytes | None) -> tuple[str, str] | None:
    if reply is None:
        return None
    token, _, reason = reply.decode(errors="replace").partition("\n")
    return token, reason


def get_fields(keys: QueueKeys, job_id: str, fields: Sequence[str]) -> Command[list[bytes | None]]:
    return plain(list, "HMGET", keys.job(job_id), *fields)


def get_state(keys: QueueKeys, job_id: str) -> Command[str]:
    """Returns the state of a job by upstream's name, or `unknown`."""
    return call(
        official("getStateV2"),
        (
            keys.completed,
            keys.failed,
            keys.delayed,
            keys.active,
            keys.wait,
            keys.paused,
            keys.waiting_children,
            keys.prioritized,
        ),
        [job_id],
        _text,
        Replay.SAFE,
    )


def _text(reply: bytes) -> str:
    return reply.decode()


@dataclass(frozen=True, slots=True)
class Finished:
    """Whether a job has finished: `state` is missing, pending, completed or failed; `value` its result or reason."""

    state: str
    value: bytes | None = None


_FINISHED = {-1: "missing", 0: "pending", 1: "completed", 2: "failed"}


def is_finished(keys: QueueKeys, job_id: str) -> Command[Finished]:
    return call(
        official("isFinished"),
        (keys.completed, keys.failed, keys.job(job_id)),
        [job_id, "1"],
        _finished,
        Replay.SAFE,
    )


def _finished(reply: list[Reply]) -> Finished:
    code = int(reply[0])
    return Finished(_FINISHED[code], reply[1] if code > 0 and len(reply) > 1 else None)


def finished_by_event(job_id: str, fields: Mapping[str, str]) -> Finished | None:
    """Returns the end of a job if this event is about it."""
    if fields.get("jobId") != job_id:
        return None
    match fields.get("event"):
        case "completed":
            return Finished("completed", fields.get("returnvalue", "null").encode())
        case "failed":
            return Finished("failed", fields.get("failedReason", "").encode())
        case "removed":
            return Finished("missing")
    return None


def get_logs(
    keys: QueueKeys, job_id: str, *, start: int = 0, end: int = -1
) -> tuple[Command[list[str]], Command[int]]:
    """Returns the lines, and their total number."""
    lines = plain(_lines, "LRANGE", keys.logs(job_id), start, end)
    return lines, plain(int, "LLEN", keys.logs(job_id))


def _lines(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Numbers of finished jobs, in all and for each past minute (newest first)."""

    count: int
    previous_count: int
    previous_at_ms: int
    minutes: list[int]
    points: int


def get_metrics(
    keys: QueueKeys, kind: Literal["completed", "failed"], *, start: int = 0, end: int = -1
) -> Command[Metrics]:
    key = keys.metrics(kind)
    return call(official("getMetrics"), (key, f"{key}:data"), [start, end], _metrics, Replay.SAFE)


def _metrics(reply: list[Reply]) -> Metrics:
    (count, previous_at, previous_count), minutes, points = reply
    return Metrics(
        int(count or 0),
        int(previous_count or 0),
        int(previous_at or 0),
        [int(float(one)) for one in minutes],
        int(points),
    )


def get_counts_per_priority(keys: QueueKeys, priorities: Sequence[int]) -> Command[dict[int, int]]:
    return call(
        official("getCountsPerPriority"),
        (keys.wait, keys.paused, keys.meta, keys.prioritized),
        list(priorities),
        lambda reply: dict(zip(priorities, (int(one) for one in reply), strict=True)),
        Replay.SAFE,
    )


def get_meta(keys: QueueKeys) -> Command[dict[str, str]]:
    return plain(_string_map, "HGETALL", keys.meta)


def _string_map(reply: Reply) -> dict[str, str]:
    flat = flat_fields(reply)
    return {
        flat[i].decode(errors="replace"): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)
    }


def is_paused(keys: QueueKeys) -> Command[bool]:
    """Returns whether the queue is paused: the field's presence counts, not its value."""
    return plain(bool, "HEXISTS", keys.meta, "paused")


def get_deduplication_job_id(keys: QueueKeys, deduplication_id: str) -> Command[str | None]:
    """Returns the job that holds this deduplication id, if there is one."""
    return plain(_text_or_none, "GET", keys.deduplication(deduplication_id))


def is_maxed(keys: QueueKeys) -> Command[bool]:
    """Returns whether as many jobs are active as the queue's concurrency allows."""
    return call(official("isMaxed"), (keys.meta, keys.active), [], bool, Replay.SAFE)


def get_rate_limit_ms(keys: QueueKeys) -> Command[int]:
    """Returns the milliseconds until the rate limit's counter expires; negative when there is none."""
    return plain(int, "PTTL", keys.limiter)


def get_rate_limit_ttl(keys: QueueKeys, max_jobs: int | None = None) -> Command[int]:
    return call(official("getRateLimitTtl"), (keys.limiter, keys.meta), [max_jobs or "0"], int, Replay.SAFE)


def get_children(keys: QueueKeys, job_id: str) -> tuple[Command[dict[str, str]], Command[list[str]]]:
    """Returns the results of finished children by key, and the keys of pending ones."""
    processed = plain(_string_map, "HGETALL", keys.processed(job_id))
    return processed, plain(_lines_of_set, "SMEMBERS", keys.dependencies(job_id))


DependencyKind = Literal["processed", "unprocessed", "ignored", "failed"]


def _dependency_keys(keys: QueueKeys, job_id: str) -> dict[DependencyKind, str]:
    return {
        "processed": keys.processed(job_id),
        "unprocessed": keys.dependencies(job_id),
        "ignored": keys.ignored_failures(job_id),
        "failed": keys.unsuccessful(job_id),
    }


def get_dependency_counts(keys: QueueKeys, job_id: str) -> Command[dict[str, int]]:
    """Returns how many children of each kind a job has."""
    by_kind = _dependency_keys(keys, job_id)
    kinds = tuple(by_kind)
    decode = functools.partial(_by_name, kinds)
    return call(official("getDependencyCounts"), tuple(by_kind.values()), kinds, decode, Replay.SAFE)


def _by_name(names: tuple[str, ...], reply: list[int]) -> dict[str, int]:
    return dict(zip(names, reply, strict=True))


def scan_dependencies(
    keys: QueueKeys, job_id: str, kind: DependencyKind, cursor: str, count: int
) -> Command[tuple[str, dict[str, str | None]]]:
    """One page of the children of a kind: the next cursor, `0` at the end, and the children with their values."""
    key = _dependency_keys(keys, job_id)[kind]
    name = {"unprocessed": "SSCAN", "failed": "ZSCAN"}.get(kind, "HSCAN")
    return plain(functools.partial(_page, kind), name, key, cursor, "COUNT", count)


def _page(kind: DependencyKind, reply: list[Reply]) -> tuple[str, dict[str, str | None]]:
    texts = [one.decode(errors="replace") for one in reply[1]]
    if kind == "unprocessed":
        return reply[0].decode(), dict.fromkeys(texts)
    values: list[str | None] = [None if kind == "failed" else value for value in texts[1::2]]
    return reply[0].decode(), dict(zip(texts[::2], values, strict=True))


def get_failed_children(keys: QueueKeys, job_id: str) -> tuple[Command[dict[str, str]], Command[list[str]]]:
    """Returns the reasons of children whose failure is ignored, by key, and the keys of those whose failure counts."""
    ignored = plain(_string_map, "HGETALL", keys.ignored_failures(job_id))
    return ignored, plain(_lines, "ZRANGE", keys.unsuccessful(job_id), 0, -1)


def _lines_of_set(reply: Reply) -> list[str]:
    return sorted(one.decode(errors="replace") for one in reply)


Entry = tuple[str, dict[str, str]]


def read_events(
    keys: Sequence[QueueKeys], after: Sequence[str], *, block_ms: int | None, count: int
) -> Command[dict[str, list[Entry]]]:
    """Returns events after the given ids, by the key of their stream; waits up to `block_ms` when there are none."""
    args: list[Arg] = ["XREAD", "COUNT", count]
    if block_ms is not None:
        args += ("BLOCK", block_ms)
    args.append("STREAMS")
    return Command((*args, *(one.events for one in keys), *after), _streams, replay=Replay.SAFE)


def _streams(reply: Reply) -> dict[str, list[Entry]]:
    pairs = reply.items() if isinstance(reply, Mapping) else (reply or ())
    return {key.decode(): entries(found) for key, found in pairs}


def entries(reply: Sequence[Reply]) -> list[Entry]:
    """Stream entries as (id, fields)."""
    return [(entry_id.decode(), _entry_fields(fields)) for entry_id, fields in reply]


def _entry_fields(flat: Sequence[bytes]) -> dict[str, str]:
    texts = [one.decode(errors="replace") for one in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def range_events(
    keys: QueueKeys, *, start: str = "-", end: str = "+", count: int = 1000
) -> Command[list[Entry]]:
    return plain(entries, "XRANGE", keys.events, start, end, "COUNT", count)


def event_total(keys: QueueKeys) -> Command[int]:
    """Returns how many events the queue ever had, if the server counts them; otherwise how many it holds."""
    return plain(_event_total, "XINFO", "STREAM", keys.events)


def _event_total(reply: Reply) -> int:
    flat = flat_fields(reply)
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return int(fields.get(b"entries-added") or fields[b"length"])


def last_events(keys: QueueKeys, count: int) -> Command[list[Entry]]:
    """Returns the newest events, oldest of them first."""
    return plain(lambda reply: entries(reply)[::-1], "XREVRANGE", keys.events, "+", "-", "COUNT", count)


def last_event_id(keys: QueueKeys) -> Command[str]:
    """Returns the id of the newest event, `0-0` for none."""
    return plain(_newest, "XREVRANGE", keys.events, "+", "-", "COUNT", 1)


def _newest(reply: Sequence[Reply]) -> str:
    return str(reply[0][0].decode()) if reply else "0-0"
