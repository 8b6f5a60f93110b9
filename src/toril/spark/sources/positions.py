"""Positions in event streams, and how far the next batch reads.

Guarantee: rows read plus events reported lost equal the events that were added between two positions, exactly,
on every server that counts what was added to a stream (Redis 7, Valkey).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from toril.commands.streams import WALK_PAGE, StreamState, entries, stream_state, walk
from toril.errors import InvalidOption, RedisError, TorilError
from toril.transport import BlockingTransport


@dataclass(frozen=True, slots=True)
class Position:
    """The last event that was read: its id, and the number of events added up to it (None: not counted)."""

    id: str
    n: int | None

    def __str__(self) -> str:
        return f"{self.id}|{'' if self.n is None else self.n}"

    @classmethod
    def parse(cls, text: str) -> Position:
        event_id, _, n = text.partition("|")
        try:
            id_parts(event_id)
            return cls(event_id, int(n) if n else None)
        except ValueError:
            raise InvalidOption(
                "offset", f"{text!r} is no position", 'it looks like "1700000000000-0|42"'
            ) from None


ORIGIN: Final = Position("0-0", 0)
# Of an id packed into one number: a million entries in one millisecond is more than a server can add.
SEQ_BITS: Final = 20


def id_parts(event_id: str) -> tuple[int, int]:
    """A stream id as numbers, which compare as Redis compares."""
    ms, _, seq = event_id.partition("-")
    return int(ms), int(seq or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one task reads of one queue: events in (`start`, `end`]."""

    queue: str
    key: str
    start: Position
    end: Position
    recreated: bool = False  # the stream was deleted and began anew: what was lost with it cannot be counted

    @property
    def expected(self) -> int | None:
        """How many events lie in it, if the server counts."""
        return None if self.start.n is None or self.end.n is None else self.end.n - self.start.n


def stretch(queue: str, key: str, start: Position, end: Position) -> Stretch | None:
    """The events between two positions; None when there are none."""
    if start == end or _not_there_yet(start, end):
        return None
    backwards = id_parts(end.id) < id_parts(start.id)
    fewer = start.n is not None and end.n is not None and end.n < start.n
    if backwards or fewer:
        return Stretch(queue=queue, key=key, start=ORIGIN, end=end, recreated=True)
    return Stretch(queue=queue, key=key, start=start, end=end)


def _not_there_yet(start: Position, end: Position) -> bool:
    """Whether reading starts at a time that the stream has not reached: such a start has a time and no count."""
    return start.n is None and end.n is not None and id_parts(end.id) <= id_parts(start.id)


def read_stream_states(transport: BlockingTransport, streams: Mapping[str, str]) -> dict[str, StreamState]:
    """The state of each stream that exists, by queue, in one round trip."""
    replies = transport.run_many([stream_state(key) for key in streams.values()])
    states: dict[str, StreamState] = {}
    for queue, reply in zip(streams, replies, strict=True):
        if isinstance(reply, StreamState):
            states[queue] = reply
        elif not _is_missing(reply):
            raise reply
    return states


def _is_missing(error: TorilError) -> bool:
    return isinstance(error, RedisError) and "no such key" in str(error).lower()


def end_of(state: StreamState) -> Position:
    return Position(state.last_id, state.added)


def available(start: Position, state: StreamState) -> int:
    """How many events can be read after `start`; an upper bound on servers that do not count."""
    end = end_of(state)
    if id_parts(end.id) <= id_parts(start.id) and start.n == end.n:
        return 0
    if start.n is None or end.n is None or end.n < start.n:
        return state.length
    return min(end.n - start.n, state.length)


def fair_shares(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divides `limit` over queues: small ones get all they need, large ones equal parts of the rest."""
    shares: dict[str, int] = {}
    left, queues = limit, sorted(wanted, key=lambda queue: wanted[queue])
    for index, queue in enumerate(queues):
        shares[queue] = min(wanted[queue], left // (len(queues) - index))
        left -= shares[queue]
    return shares


def advance(transport: BlockingTransport, key: str, start: Position, count: int) -> Position:
    """The position `count` events after `start`, found without transferring them."""
    position, left = start, count
    while left > 0:
        step = transport.run(walk(key, position.id, min(left, WALK_PAGE)))
        if step.count == 0:
            break
        before = position.n if step.trimmed is None else step.trimmed
        position = Position(step.last_id, None if before is None else before + step.count)
        left -= step.count
    return position


def plan_end(
    transport: BlockingTransport,
    streams: Mapping[str, str],
    start: Mapping[str, Position],
    targets: Mapping[str, Position],
    limit: int | None,
) -> dict[str, Position]:
    """Where the next batch ends: at the targets, or earlier so that at most `limit` events are read."""
    states = read_stream_states(transport, streams)
    ends = {queue: targets.get(queue) or end_of(state) for queue, state in states.items()}
    if limit is not None:
        ends.update(_ends_within_limit(transport, streams, start, states, ends, limit))
    return {
        **start,
        **{queue: end for queue, end in ends.items() if not _not_there_yet(start.get(queue, ORIGIN), end)},
    }


def _ends_within_limit(
    transport: BlockingTransport,
    streams: Mapping[str, str],
    start: Mapping[str, Position],
    states: Mapping[str, StreamState],
    ends: Mapping[str, Position],
    limit: int,
) -> dict[str, Position]:
    wanted = {queue: _wanted(start.get(queue, ORIGIN), state, ends[queue]) for queue, state in states.items()}
    if sum(wanted.values()) <= limit:
        return {}
    shares = fair_shares(wanted, max(limit, 1))
    short = [queue for queue, share in shares.items() if share < wanted[queue]]
    return {
        queue: _end_of_share(transport, streams[queue], start.get(queue, ORIGIN), ends[queue], shares[queue])
        for queue in short
    }


def _wanted(start: Position, state: StreamState, end: Position) -> int:
    return available(start, replace(state, last_id=end.id, added=end.n))


def _end_of_share(
    transport: BlockingTransport, key: str, start: Position, end: Position, share: int
) -> Position:
    begun_anew = stretch("", key, start, end)
    origin = ORIGIN if begun_anew is not None and begun_anew.recreated else start
    reached = _whole_step(transport, key, advance(transport, key, origin, share))
    return end if id_parts(reached.id) >= id_parts(end.id) else reached


def _whole_step(transport: BlockingTransport, key: str, position: Position) -> Position:
    """A sweep adds `waiting` and `stalled` in one step; a batch that ended between them would show a retry."""
    following = transport.run(entries(key, position.id, "+", 1))
    if not following or following[0][1][:2] != [b"event", b"stalled"]:
        return position
    return Position(following[0][0].decode(), None if position.n is None else position.n + 1)


def split_exactly(transport: BlockingTransport, one: Stretch, rows: int) -> list[Stretch]:
    """Pieces of about `rows` events, each with exact ordinals at both ends, so that each can count its losses."""
    if one.expected is None or one.expected <= rows:
        return [one]
    pieces: list[Stretch] = []
    start = one.start
    while True:
        reached = advance(transport, one.key, start, rows)
        if reached == start or id_parts(reached.id) >= id_parts(one.end.id):
            return [*pieces, replace(one, start=start, recreated=one.recreated and not pieces)]
        pieces.append(replace(one, start=start, end=reached, recreated=one.recreated and not pieces))
        start = reached


def split_by_time(one: Stretch, first_id: str, parts: int) -> list[Stretch]:
    """Pieces of equal time; only the sum of their rows can be compared with what was expected."""
    low, high = max(id_parts(one.start.id)[0], id_parts(first_id)[0]), id_parts(one.end.id)[0]
    cuts = sorted({low + (high - low) * part // parts for part in range(1, parts)} - {low, high})
    edges: Sequence[Position] = [one.start, *(Position(f"{cut}-0", None) for cut in cuts), one.end]
    return [replace(one, start=a, end=b) for a, b in itertools.pairwise(edges)]
