"""Commands of a list queue's worker: settle and fetch, renew locks, put back the jobs of dead workers.

Guarantee: a job is in one place at any moment: the list, the sorted set, at a worker (with reliable pickup in its
processing list), or the dead letters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from toril.commands.command import Command, Replay, Reply, plain
from toril.commands.envelope_settle import (
    SETTLEMENT,
    FetchedEnvelope,
    FetchReply,
    Settlement,
    ack_errors_of,
    args_of,
    due_ms_of,
)
from toril.commands.envelopes import result_base
from toril.commands.own_script import OwnScript
from toril.protocol.keys import ListKeys

_SETTLE = OwnScript(
    "list_settle",
    keys="jobs scheduled dlq totals processing consumers stalls unbegun",
    args="lock_base now_ms capacity token lock_ms consumer result_base",
    each=SETTLEMENT,
)
_RENEW = OwnScript(
    "list_renew", keys="consumers", args="lock_base lock_ms now_ms consumer", each="job_id token"
)
_RETAKE = OwnScript(
    "list_retake", keys="processing", args="lock_base lock_ms reliable", each="job_id token envelope"
)
_RECOVER = OwnScript(
    "list_recover",
    keys="jobs consumers totals stalls",
    args="processing_base now_ms silence_ms limit consumer unbegun_base",
)
_GIVE_BACK = OwnScript(
    "list_give_back", keys="jobs processing unbegun", args="lock_base", each="job_id envelope"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPickup:
    """How jobs are fetched: lock token and time, and the consumer for reliable pickup (empty: at most once)."""

    token: str
    lock_ms: int
    consumer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFetchReply(FetchReply):
    """The reply to a call that settles and fetches."""

    left: int  # jobs that are still in the list


@dataclass(frozen=True, slots=True)
class UnrenewedLocks:
    """Locks that could not be renewed, by job id."""

    lost: set[str]  # another worker has the lock
    expired: set[str]  # expired, or the job was given back


def lock_base(keys: ListKeys) -> str:
    """Returns the start of every lock key."""
    return keys.lock("")


def settle(
    keys: ListKeys, settlements: Sequence[Settlement], *, capacity: int, pickup: ListPickup, now_ms: int
) -> Command[ListFetchReply]:
    """Settles all and fetches up to `capacity` jobs, in one call."""
    args = _SETTLE.args(
        lock_base=lock_base(keys),
        now_ms=now_ms,
        capacity=capacity,
        token=pickup.token,
        lock_ms=pickup.lock_ms,
        consumer=pickup.consumer,
        result_base=result_base(keys),
    )
    args += args_of(settlements)
    decode = functools.partial(_fetch_reply, settlements, pickup)
    return _SETTLE.call(_settle_keys(keys, pickup.consumer), args, decode)


@functools.lru_cache(maxsize=256)
def _settle_keys(keys: ListKeys, consumer: str) -> tuple[str, ...]:
    return _SETTLE.keys(
        keys,
        jobs=keys.queue,
        totals=keys.toril("totals"),
        processing=keys.processing(consumer),
        consumers=keys.toril("consumers"),
        stalls=keys.toril("stalls"),
        unbegun=keys.unbegun(consumer),
    )


def _fetch_reply(settlements: Sequence[Settlement], pickup: ListPickup, reply: list[Reply]) -> ListFetchReply:
    codes, jobs, next_due, fetch_error, left = reply
    return ListFetchReply(
        ack_errors=ack_errors_of(settlements, codes),
        jobs=[
            FetchedEnvelope(text, text, pickup.token, int(stalls))
            for text, stalls in zip(jobs[::2], jobs[1::2], strict=True)
        ],
        next_due_ms=due_ms_of(next_due),
        fetch_error=fetch_error.decode(errors="replace"),
        left=int(left),
    )


def confirm_pickup(keys: ListKeys, consumer: str, token: str) -> Command[int]:
    """Records that the jobs of a pickup reached their worker: from now on its death costs them an attempt."""
    return Command(("HDEL", keys.unbegun(consumer), token), int, replay=Replay.SAFE)


def wait_for_job(keys: ListKeys, timeout: float) -> Command[bool]:
    """Blocks until the list holds a job and fetches none: moving the last job to its own place changes nothing.

    So a wait may be interrupted at any moment, while a pop that is interrupted would lose its job.
    """
    args = ("BLMOVE", keys.queue, keys.queue, "RIGHT", "RIGHT", timeout)
    return Command(args, lambda reply: reply is not None, replay=Replay.SAFE)


def renew(
    keys: ListKeys, held: Sequence[tuple[str, str]], *, lock_ms: int, now_ms: int, consumer: str = ""
) -> Command[UnrenewedLocks]:
    """Renews locks (job id, token); returns those that could not be renewed."""
    args = _RENEW.args(lock_base=lock_base(keys), lock_ms=lock_ms, now_ms=now_ms, consumer=consumer)
    for job_id, token in held:
        args += (job_id, token)
    return _RENEW.call((keys.toril("consumers"),), args, _unrenewed, Replay.SAFE)


def _unrenewed(reply: list[list[bytes]]) -> UnrenewedLocks:
    lost, expired = reply
    return UnrenewedLocks(_ids(lost), _ids(expired))


def retake(
    keys: ListKeys, jobs: Sequence[tuple[str, str, bytes]], *, lock_ms: int, consumer: str = ""
) -> Command[set[str]]:
    """Locks jobs (id, token, envelope) again whose locks have expired; returns the ids that another worker has."""
    args = _RETAKE.args(lock_base=lock_base(keys), lock_ms=lock_ms, reliable=int(bool(consumer)))
    for job in jobs:
        args += job
    return _RETAKE.call((keys.processing(consumer),), args, _ids, Replay.SAFE)


def _ids(reply: list[bytes]) -> set[str]:
    return {one.decode(errors="replace") for one in reply}


def recover(
    keys: ListKeys, *, consumer: str, now_ms: int, silence_ms: int, limit: int
) -> Command[tuple[list[bytes], bool]]:
    """Puts back up to `limit` jobs of workers that were silent for `silence_ms`.

    Returns their envelopes, and whether there are more. `consumer` sends the call, and so is alive.
    """
    script_keys = _RECOVER.keys(
        keys,
        jobs=keys.queue,
        consumers=keys.toril("consumers"),
        totals=keys.toril("totals"),
        stalls=keys.toril("stalls"),
    )
    args = _RECOVER.args(
        processing_base=keys.processing(""),
        now_ms=now_ms,
        silence_ms=silence_ms,
        limit=limit,
        consumer=consumer,
        unbegun_base=keys.unbegun(""),
    )
    return _RECOVER.call(script_keys, args, _recovered)


def _recovered(reply: list[Reply]) -> tuple[list[bytes], bool]:
    envelopes, dead_workers = reply
    return envelopes, bool(dead_workers)


def processing_envelopes(keys: ListKeys, consumer: str) -> Command[list[bytes]]:
    """Returns the envelopes in a worker's processing list."""
    return plain(list, "LRANGE", keys.processing(consumer), 0, -1)


def give_back(keys: ListKeys, consumer: str, jobs: Sequence[tuple[str, bytes]]) -> Command[int]:
    """Puts jobs (id, envelope) of a worker's processing list back to the queue; returns how many."""
    args = _GIVE_BACK.args(lock_base=lock_base(keys))
    for job_id, text in jobs:
        args += (job_id, text)
    script_keys = _GIVE_BACK.keys(
        keys, jobs=keys.queue, processing=keys.processing(consumer), unbegun=keys.unbegun(consumer)
    )
    return _GIVE_BACK.call(script_keys, args, int, Replay.SAFE)


def remove_consumer(keys: ListKeys, consumer: str) -> list[Command[int]]:
    """Removes a worker without jobs from the consumers."""
    return [
        Command(("ZREM", keys.toril("consumers"), consumer), int, replay=Replay.SAFE),
        Command(("UNLINK", keys.unbegun(consumer)), int, replay=Replay.SAFE),
    ]


def counts(keys: ListKeys) -> list[Command[Reply]]:
    """Returns the numbers of waiting and scheduled jobs and of dead letters, and the workers with processing lists."""
    return [
        count_waiting(keys),
        plain(int, "ZCARD", keys.scheduled),
        plain(int, "XLEN", keys.dlq),
        consumers(keys),
    ]


def count_waiting(keys: ListKeys) -> Command[int]:
    """Returns the number of waiting jobs."""
    return plain(int, "LLEN", keys.queue)


def recount(keys: ListKeys, consumers: Sequence[str]) -> list[Command[int]]:
    """Returns the number of jobs of each worker, then waiting and scheduled: a job that moved meanwhile counts once."""
    processing = [count_processing(keys, one) for one in consumers]
    return [*processing, count_waiting(keys), plain(int, "ZCARD", keys.scheduled)]


def consumers(keys: ListKeys) -> Command[list[str]]:
    """Returns the names of the workers with processing lists."""
    return plain(
        lambda names: [name.decode(errors="replace") for name in names],
        "ZRANGE",
        keys.toril("consumers"),
        0,
        -1,
    )


def count_processing(keys: ListKeys, consumer: str) -> Command[int]:
    """Returns the number of jobs in a worker's processing list."""
    return plain(int, "LLEN", keys.processing(consumer))


def waiting(keys: ListKeys, start: int, stop: int) -> Command[list[bytes]]:
    """Returns envelopes of the list; index -1 is fetched next."""
    return plain(list, "LRANGE", keys.queue, start, stop)
