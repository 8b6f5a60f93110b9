"""The calls of a list queue's worker: settle and take, keep locks, put back what dead workers had.

Guarantee: a job is in one place at any moment: the list, the sorted set, a worker's hand (or its own list), or the dead
letters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands.command import Command, Replay, plain
from toril.commands.envelope_settle import (
    SETTLEMENT,
    FetchReply,
    Settlement,
    TakenEnvelope,
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
    """How jobs are taken: under which lock, for how long, and into whose list (empty: at most once)."""

    token: str
    lock_ms: int
    consumer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFetchReply(FetchReply):
    """What a call brought back."""

    left: int  # jobs that are still in the list


@dataclass(frozen=True, slots=True)
class Kept:
    """Locks that could not be extended."""

    lost: set[str]  # they are another's
    gone: set[str]  # they ran out, or were given back


def lock_base(keys: ListKeys) -> str:
    """What every lock key starts with."""
    return keys.lock("")


def exchange(
    keys: ListKeys, settlements: Sequence[Settlement], *, take: int, pickup: ListPickup, now_ms: int
) -> Command[ListFetchReply]:
    """Settles all and takes up to `take` jobs, in one call."""
    args = _SETTLE.args(
        lock_base=lock_base(keys),
        now_ms=now_ms,
        capacity=take,
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


def _fetch_reply(settlements: Sequence[Settlement], pickup: ListPickup, reply: list[Any]) -> ListFetchReply:
    codes, jobs, next_due, trouble, left = reply
    return ListFetchReply(
        ack_errors=ack_errors_of(settlements, codes),
        jobs=[
            TakenEnvelope(text, text, pickup.token, int(stalls))
            for text, stalls in zip(jobs[::2], jobs[1::2], strict=True)
        ],
        next_due_ms=due_ms_of(next_due),
        trouble=trouble.decode(errors="replace"),
        left=int(left),
    )


def begin(keys: ListKeys, consumer: str, token: str) -> Command[int]:
    """The jobs of a pickup have come to their worker: should it die now, each of them has used an attempt."""
    return Command(("HDEL", keys.unbegun(consumer), token), int, replay=Replay.SAFE)


def wait_for_job(keys: ListKeys, timeout: float) -> Command[bool]:
    """Blocks until the list holds a job and takes none: moving the last one to where it stands changes nothing.

    So a wait may be cut off at any moment, while a pop that is cut off would lose its job.
    """
    words = ("BLMOVE", keys.queue, keys.queue, "RIGHT", "RIGHT", timeout)
    return Command(words, lambda reply: reply is not None, replay=Replay.SAFE)


def keep(
    keys: ListKeys, held: Sequence[tuple[str, str]], *, lock_ms: int, now_ms: int, consumer: str = ""
) -> Command[Kept]:
    """Extends locks (job id, token); says which are not ours any more."""
    args = _RENEW.args(lock_base=lock_base(keys), lock_ms=lock_ms, now_ms=now_ms, consumer=consumer)
    for job_id, token in held:
        args += (job_id, token)
    return _RENEW.call((keys.toril("consumers"),), args, _kept, Replay.SAFE)


def _kept(reply: list[list[bytes]]) -> Kept:
    lost, gone = reply
    return Kept(_ids(lost), _ids(gone))


def retake(
    keys: ListKeys, jobs: Sequence[tuple[str, str, bytes]], *, lock_ms: int, consumer: str = ""
) -> Command[set[str]]:
    """Locks jobs in hand (id, token, envelope) anew whose locks had run out; the ids of those that are another's."""
    args = _RETAKE.args(lock_base=lock_base(keys), lock_ms=lock_ms, reliable=int(bool(consumer)))
    for job in jobs:
        args += job
    return _RETAKE.call((keys.processing(consumer),), args, _ids, Replay.SAFE)


def _ids(reply: list[bytes]) -> set[str]:
    return {one.decode() for one in reply}


def recover(
    keys: ListKeys, *, consumer: str, now_ms: int, silence_ms: int, limit: int
) -> Command[tuple[list[bytes], bool]]:
    """Puts back up to `limit` jobs of workers that were silent for so long; whether there are more.

    The value holds their envelopes. `consumer` asks, and so lives.
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


def _recovered(reply: list[Any]) -> tuple[list[bytes], bool]:
    envelopes, dead_workers = reply
    return envelopes, bool(dead_workers)


def in_own_list(keys: ListKeys, consumer: str) -> Command[list[bytes]]:
    """The envelopes in a worker's own list."""
    return plain(list, "LRANGE", keys.processing(consumer), 0, -1)


def give_back(keys: ListKeys, consumer: str, jobs: Sequence[tuple[str, bytes]]) -> Command[int]:
    """Puts jobs (id, envelope) of a worker's own list back to the queue."""
    args = _GIVE_BACK.args(lock_base=lock_base(keys))
    for job_id, text in jobs:
        args += (job_id, text)
    script_keys = _GIVE_BACK.keys(
        keys, jobs=keys.queue, processing=keys.processing(consumer), unbegun=keys.unbegun(consumer)
    )
    return _GIVE_BACK.call(script_keys, args, int, Replay.SAFE)


def leave(keys: ListKeys, consumer: str) -> list[Command[int]]:
    """A worker with nothing in hand signs off."""
    return [
        Command(("ZREM", keys.toril("consumers"), consumer), int, replay=Replay.SAFE),
        Command(("UNLINK", keys.unbegun(consumer)), int, replay=Replay.SAFE),
    ]


def counts(keys: ListKeys) -> list[Command[Any]]:
    """Waiting, scheduled, dead, and the names of workers with lists of their own."""
    return [
        plain(int, "LLEN", keys.queue),
        plain(int, "ZCARD", keys.scheduled),
        plain(int, "XLEN", keys.dlq),
        consumers(keys),
    ]


def counts_again(keys: ListKeys, consumers: Sequence[str]) -> list[Command[int]]:
    """Jobs in each worker's own list, then waiting and scheduled: a job that moved since `counts` is seen once here."""
    own = [in_hand(keys, one) for one in consumers]
    return [*own, plain(int, "LLEN", keys.queue), plain(int, "ZCARD", keys.scheduled)]


def consumers(keys: ListKeys) -> Command[list[str]]:
    """The workers with lists of their own, by name."""
    return plain(lambda names: [name.decode() for name in names], "ZRANGE", keys.toril("consumers"), 0, -1)


def in_hand(keys: ListKeys, consumer: str) -> Command[int]:
    """How many jobs stand in a worker's own list."""
    return plain(int, "LLEN", keys.processing(consumer))


def waiting(keys: ListKeys, start: int, stop: int) -> Command[list[bytes]]:
    """Envelopes in the list; index -1 is taken next."""
    return plain(list, "LRANGE", keys.queue, start, stop)
