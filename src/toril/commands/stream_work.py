"""The calls of a stream queue's worker: settle and take, renew, claim what dead consumers had, tidy up.

Guarantee: an entry is acknowledged only by the delivery that is current, and what it becomes is written in the same
call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands._command import Command, Replay, Word, call
from toril.commands._library import own
from toril.commands._verdicts import verdict
from toril.commands.envelopes import SettlementKind, result_base
from toril.contract.errors import TorilError
from toril.contract.keys import StreamKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettlement:
    """What became of one entry; `deliveries` tells this delivery from a later one of the same entry."""

    kind: SettlementKind
    entry_id: str
    deliveries: int
    job_id: str
    due_ms: int = 0
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry in our hand."""

    entry_id: str
    deliveries: int
    text: bytes  # the envelope, or all fields one after the other if there is none


@dataclass(frozen=True, slots=True)
class StreamHarvest:
    """What a call brought back."""

    verdicts: list[TorilError | None]
    entries: list[StreamEntry]
    next_due_ms: int  # -1: nothing is scheduled
    trouble: str  # why nothing could be taken
    wait_after: str  # where a wait for more begins, if there was nothing; else ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a sweep brought: entries that are ours now, and those that were trimmed before anybody finished them."""

    cursor: str
    entries: list[StreamEntry]
    trimmed: list[str]


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """Where the jobs of a stream queue are."""

    waiting: int  # not delivered to anybody: the lag
    pending: int  # delivered and not acknowledged
    scheduled: int
    dead: int
    length: int  # entries in the stream, finished ones included
    consumers: int


def exchange(
    keys: StreamKeys,
    settlements: Sequence[StreamSettlement],
    *,
    consumer: str,
    take: int,
    keep: int | None,
    now_ms: int,
) -> Command[StreamHarvest]:
    """Settles all and takes up to `take` entries, in one call; makes the group if there is none."""
    args: list[Word] = [keys.group, consumer, now_ms, take, "" if keep is None else keep, result_base(keys)]
    for one in settlements:
        args += (one.entry_id, one.deliveries, one.kind, one.job_id, one.due_ms, one.text)
    script_keys = (keys.stream, keys.scheduled, keys.dlq, keys.toril("totals"))
    return call(own("stream_exchange"), script_keys, args, functools.partial(_harvest, settlements))


def _harvest(settlements: Sequence[StreamSettlement], reply: list[Any]) -> StreamHarvest:
    codes, jobs, next_due, trouble, wait_after = reply
    return StreamHarvest(
        verdicts=[verdict(one.job_id, one.kind, code) for one, code in zip(settlements, codes, strict=True)],
        entries=_entries(jobs),
        next_due_ms=int(float(next_due)),
        trouble=trouble.decode(errors="replace"),
        wait_after=wait_after.decode(),
    )


def _entries(flat: list[Any]) -> list[StreamEntry]:
    return [
        StreamEntry(entry_id.decode(), int(deliveries), text if type(text) is bytes else b" ".join(text))
        for entry_id, deliveries, text in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    ]


def wait_for_entry(keys: StreamKeys, after: str, timeout: float) -> Command[bool]:
    """Blocks until the stream has an entry after this one, and takes none."""
    block = max(1, round(timeout * 1000))
    words = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", keys.stream, after)
    return Command(words, lambda reply: reply is not None, replay=Replay.SAFE)


def keep(keys: StreamKeys, held: Sequence[tuple[str, int]], *, consumer: str) -> Command[set[str]]:
    """Renews our hold on entries (id, deliveries); the ids of those that are not ours any more."""
    args: list[Word] = [keys.group, consumer]
    for entry_id, deliveries in held:
        args += (entry_id, deliveries)
    return call(own("stream_keep"), (keys.stream,), args, _ids, Replay.SAFE)


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
    in_hand: Sequence[str],
) -> Command[Claimed]:
    """Takes over up to `limit` entries that nobody renews any more."""
    args: list[Word] = [keys.group, consumer, idle_ms, own_idle_ms, cursor, limit, *in_hand]
    return call(own("stream_claim"), (keys.stream, keys.toril("totals")), args, _claimed)


def _claimed(reply: list[Any]) -> Claimed:
    cursor, jobs, trimmed = reply
    return Claimed(cursor.decode(), _entries(jobs), [one.decode() for one in trimmed])


def tidy(keys: StreamKeys, *, idle_ms: int, leaving: str = "") -> Command[list[str]]:
    """Removes consumers with nothing pending that were idle for long, or that leave now; their names."""
    decode = lambda names: [name.decode() for name in names]  # noqa: E731
    return call(own("stream_tidy"), (keys.stream,), [keys.group, idle_ms, leaving], decode, Replay.SAFE)


def counts(keys: StreamKeys) -> Command[StreamCounts]:
    """Where the jobs are."""
    script_keys = (keys.stream, keys.scheduled, keys.dlq)
    return call(own("stream_counts"), script_keys, [keys.group], _counts, Replay.SAFE)


def _counts(reply: list[int]) -> StreamCounts:
    return StreamCounts(*map(int, reply))
