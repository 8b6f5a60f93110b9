"""The calls of a stream queue's worker: settle and take, renew, claim what dead consumers had, tidy up.

Guarantee: an entry is acknowledged only by the delivery that is current, and what it becomes is written in the same
call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands.command import Command, Replay
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
from toril.protocol.keys import RETURNED_CONSUMER, StreamKeys

_SETTLE = OwnScript(
    "stream_settle",
    keys="stream scheduled dlq totals",
    args="group consumer now_ms capacity max_length result_base returned_consumer",
    each=SETTLEMENT,
)
_RENEW = OwnScript("stream_renew", keys="stream", args="group consumer", each="entry_id deliveries")
_CLAIM = OwnScript(
    "stream_claim",
    keys="stream totals",
    args="group consumer idle_ms own_idle_ms cursor limit until_ms owed_count",
    each="entry_id",
)
_CLEANUP = OwnScript("stream_cleanup", keys="stream", args="group idle_ms leaving")
_COUNTS = OwnScript("stream_counts", keys="stream scheduled dlq", args="group returned_consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFetchReply(FetchReply):
    """What a call brought back."""

    wait_after: str  # where a wait for more begins, if there was nothing; else ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a sweep brought: entries that are ours now, and those that were trimmed before anybody finished them."""

    cursor: str
    jobs: list[TakenEnvelope]
    trimmed: list[str]
    more: bool  # whether there may be more to claim


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Where the jobs of a stream queue are."""

    waiting: int  # not delivered to anybody, the lag, or given back
    pending: int  # delivered and not acknowledged
    scheduled: int
    dead: int
    length: int  # entries in the stream, finished ones included
    consumers: int


def exchange(
    keys: StreamKeys,
    settlements: Sequence[Settlement],
    *,
    consumer: str,
    take: int,
    keep: int | None,
    now_ms: int,
) -> Command[StreamFetchReply]:
    """Settles all and takes up to `take` entries, in one call; makes the group if there is none."""
    args = _SETTLE.args(
        group=keys.group,
        consumer=consumer,
        now_ms=now_ms,
        capacity=take,
        max_length="" if keep is None else keep,
        result_base=result_base(keys),
        returned_consumer=RETURNED_CONSUMER,
    )
    args += args_of(settlements)
    return _SETTLE.call(_settle_keys(keys), args, functools.partial(_fetch_reply, settlements))


@functools.lru_cache(maxsize=256)
def _settle_keys(keys: StreamKeys) -> tuple[str, ...]:
    return _SETTLE.keys(keys, totals=keys.toril("totals"))


def _fetch_reply(settlements: Sequence[Settlement], reply: list[Any]) -> StreamFetchReply:
    codes, jobs, next_due, trouble, wait_after = reply
    return StreamFetchReply(
        ack_errors=ack_errors_of(settlements, codes),
        jobs=_taken(jobs),
        next_due_ms=due_ms_of(next_due),
        trouble=trouble.decode(errors="replace"),
        wait_after=wait_after.decode(),
    )


def _taken(flat: list[Any]) -> list[TakenEnvelope]:
    return [
        TakenEnvelope(
            text if type(text) is bytes else b" ".join(text),
            entry_id.decode(),
            int(deliveries),
            int(deliveries) - 1,
        )
        for entry_id, deliveries, text in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def wait_for_entry(keys: StreamKeys, after: str, timeout: float) -> Command[bool]:
    """Blocks until the stream has an entry after this one, and takes none."""
    block = max(1, round(timeout * 1000))
    words = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", keys.stream, after)
    return Command(words, lambda reply: reply is not None, replay=Replay.SAFE)


def keep(keys: StreamKeys, held: Sequence[tuple[str, int]], *, consumer: str) -> Command[set[str]]:
    """Renews our hold on entries (id, deliveries); the ids of those that are not ours any more."""
    args = _RENEW.args(group=keys.group, consumer=consumer)
    for entry_id, deliveries in held:
        args += (entry_id, deliveries)
    return _RENEW.call((keys.stream,), args, _ids, Replay.SAFE)


def _ids(reply: list[bytes]) -> set[str]:
    return {one.decode() for one in reply}


def claim(
    keys: StreamKeys,
    *,
    consumer: str,
    idle_ms: int,
    own_idle_ms: int,
    cursor: str,
    limit: int,
    until_ms: int,
    owed: Sequence[str],
    in_hand: Sequence[str],
) -> Command[Claimed]:
    """Claims up to `limit` entries that no worker renews any more; not those whose outcome is to be settled (`owed`).

    A call that reaches the server after `until_ms` (the server's time) claims none.
    """
    args = _CLAIM.args(
        group=keys.group,
        consumer=consumer,
        idle_ms=idle_ms,
        own_idle_ms=own_idle_ms,
        cursor=cursor,
        limit=limit,
        until_ms=until_ms,
        owed_count=len(owed),
    )
    args += (*owed, *in_hand)
    return _CLAIM.call(_CLAIM.keys(keys, totals=keys.toril("totals")), args, _claimed)


def _claimed(reply: list[Any]) -> Claimed:
    cursor, jobs, trimmed, more = reply
    return Claimed(cursor.decode(), _taken(jobs), [one.decode() for one in trimmed], bool(more))


def tidy(keys: StreamKeys, *, idle_ms: int, leaving: str = "") -> Command[list[str]]:
    """Removes consumers with nothing pending that were idle for long, or that leave now; their names."""
    decode = lambda names: [name.decode() for name in names]  # noqa: E731
    args = _CLEANUP.args(group=keys.group, idle_ms=idle_ms, leaving=leaving)
    return _CLEANUP.call(_CLEANUP.keys(keys), args, decode, Replay.SAFE)


def counts(keys: StreamKeys) -> Command[StreamCounts]:
    """Where the jobs are."""
    args = _COUNTS.args(group=keys.group, returned_consumer=RETURNED_CONSUMER)
    return _COUNTS.call(_COUNTS.keys(keys), args, _counts, Replay.SAFE)


def _counts(reply: list[int]) -> StreamCounts:
    return StreamCounts(*map(int, reply))
