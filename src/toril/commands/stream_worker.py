"""Commands of a stream queue's worker: settle and fetch, renew, claim entries of dead consumers, remove consumers.

Guarantee: an entry is acknowledged only by its current delivery, and its outcome is written in the same call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from toril.commands.command import Command, Replay, Reply
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
from toril.protocol.keys import RETURNED_CONSUMER, StreamKeys

_SETTLE = OwnScript(
    "stream_settle",
    keys="stream scheduled dlq totals",
    args="consumer_group consumer now_ms capacity max_length result_base returned_consumer",
    each=SETTLEMENT,
)
_RENEW = OwnScript("stream_renew", keys="stream", args="consumer_group consumer", each="entry_id deliveries")
_CLAIM = OwnScript(
    "stream_claim",
    keys="stream totals",
    args="consumer_group consumer idle_ms own_idle_ms cursor limit until_ms unsettled_count",
    each="entry_id",
)
_CLEANUP = OwnScript("stream_cleanup", keys="stream", args="consumer_group idle_ms leaving")
_COUNTS = OwnScript("stream_counts", keys="stream scheduled dlq", args="consumer_group returned_consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFetchReply(FetchReply):
    """The reply to a call that settles and fetches."""

    wait_after: str  # the entry to wait after, if nothing was fetched; else ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Entries that a sweep claimed, and those that were trimmed before they were settled."""

    cursor: str
    jobs: list[FetchedEnvelope]
    trimmed: list[str]
    more: bool  # whether there may be more to claim


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """The jobs of a stream queue by state."""

    waiting: int  # not delivered (the lag), or given back
    pending: int  # delivered and not acknowledged
    scheduled: int
    dead: int
    length: int  # entries in the stream, finished ones included
    consumers: int


def settle(
    keys: StreamKeys,
    settlements: Sequence[Settlement],
    *,
    consumer: str,
    capacity: int,
    max_length: int | None,
    now_ms: int,
) -> Command[StreamFetchReply]:
    """Settles all and fetches up to `capacity` entries, in one call; creates the consumer group if there is none."""
    args = _SETTLE.args(
        consumer_group=keys.consumer_group,
        consumer=consumer,
        now_ms=now_ms,
        capacity=capacity,
        max_length="" if max_length is None else max_length,
        result_base=result_base(keys),
        returned_consumer=RETURNED_CONSUMER,
    )
    args += args_of(settlements)
    return _SETTLE.call(_settle_keys(keys), args, functools.partial(_fetch_reply, settlements))


@functools.lru_cache(maxsize=256)
def _settle_keys(keys: StreamKeys) -> tuple[str, ...]:
    return _SETTLE.keys(keys, totals=keys.toril("totals"))


def _fetch_reply(settlements: Sequence[Settlement], reply: list[Reply]) -> StreamFetchReply:
    codes, jobs, next_due, fetch_error, wait_after = reply
    return StreamFetchReply(
        ack_errors=ack_errors_of(settlements, codes),
        jobs=_fetched(jobs),
        next_due_ms=due_ms_of(next_due),
        fetch_error=fetch_error.decode(errors="replace"),
        wait_after=wait_after.decode(),
    )


def _fetched(flat: list[Reply]) -> list[FetchedEnvelope]:
    return [
        FetchedEnvelope(
            text if type(text) is bytes else b" ".join(text),
            entry_id.decode(),
            int(deliveries),
            int(deliveries) - 1,
        )
        for entry_id, deliveries, text in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def wait_for_entry(keys: StreamKeys, after: str, timeout: float) -> Command[bool]:
    """Blocks until the stream has an entry after this one, and fetches none."""
    block = max(1, round(timeout * 1000))
    args = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", keys.stream, after)
    return Command(args, lambda reply: reply is not None, replay=Replay.SAFE)


def renew(keys: StreamKeys, held: Sequence[tuple[str, int]], *, consumer: str) -> Command[set[str]]:
    """Renews entries (id, deliveries); returns the ids that this consumer has no longer."""
    args = _RENEW.args(consumer_group=keys.consumer_group, consumer=consumer)
    for entry_id, deliveries in held:
        args += (entry_id, deliveries)
    return _RENEW.call((keys.stream,), args, _ids, Replay.SAFE)


def _ids(reply: list[bytes]) -> set[str]:
    return {one.decode(errors="replace") for one in reply}


def claim(
    keys: StreamKeys,
    *,
    consumer: str,
    idle_ms: int,
    own_idle_ms: int,
    cursor: str,
    limit: int,
    until_ms: int,
    unsettled: Sequence[str],
    running: Sequence[str],
) -> Command[Claimed]:
    """Claims up to `limit` entries that no worker renews, without those whose outcome is `unsettled`.

    A call that reaches the server after `until_ms` (the server's time) claims none.
    """
    args = _CLAIM.args(
        consumer_group=keys.consumer_group,
        consumer=consumer,
        idle_ms=idle_ms,
        own_idle_ms=own_idle_ms,
        cursor=cursor,
        limit=limit,
        until_ms=until_ms,
        unsettled_count=len(unsettled),
    )
    args += (*unsettled, *running)
    return _CLAIM.call(_CLAIM.keys(keys, totals=keys.toril("totals")), args, _claimed)


def _claimed(reply: list[Reply]) -> Claimed:
    cursor, jobs, trimmed, more = reply
    return Claimed(cursor.decode(), _fetched(jobs), [one.decode() for one in trimmed], bool(more))


def remove_consumers(keys: StreamKeys, *, idle_ms: int, leaving: str = "") -> Command[list[str]]:
    """Removes consumers with nothing pending that were idle for long, or that leave now; returns their names."""
    args = _CLEANUP.args(consumer_group=keys.consumer_group, idle_ms=idle_ms, leaving=leaving)
    return _CLEANUP.call(_CLEANUP.keys(keys), args, _names, Replay.SAFE)


def _names(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def counts(keys: StreamKeys) -> Command[StreamCounts]:
    """Returns the numbers of jobs by state."""
    args = _COUNTS.args(consumer_group=keys.consumer_group, returned_consumer=RETURNED_CONSUMER)
    return _COUNTS.call(_COUNTS.keys(keys), args, _counts, Replay.SAFE)


def _counts(reply: list[int]) -> StreamCounts:
    return StreamCounts(*map(int, reply))
