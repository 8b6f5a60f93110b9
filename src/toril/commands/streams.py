"""Reading a stream by position: what it holds, a page of it, and how far a number of entries reaches.

Guarantee: a position's ordinal is exact: entries that were trimmed count as lost, never as read, even when the
trimming happens between two pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toril.commands.command import Command, Replay, Reply, plain
from toril.commands.own_script import OwnScript
from toril.commands.read import entries as decoded_entries
from toril.commands.read import flat_fields

# Entries that one call skips: about 5 ms of the server's time.
WALK_PAGE = 5_000

_WALK = OwnScript("walk_stream", keys="stream", args="after limit")
_FOLLOW = OwnScript("follow_stream", keys="stream", args="after limit count_before")


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a stream by XINFO; `added` is None on servers that do not count (Redis 6.2)."""

    length: int
    last_id: str
    added: int | None
    first_id: str | None  # None when it is empty


@dataclass(frozen=True, slots=True)
class Step:
    """How far a walk came: `count` entries up to `last_id`; `trimmed` entries precede the first one if it moved."""

    count: int
    last_id: str
    trimmed: int | None


def stream_state(key: str) -> Command[StreamState]:
    """Returns the state of a stream. A missing stream is an error of the server."""
    return plain(_state, "XINFO", "STREAM", key)


def _state(reply: Reply) -> StreamState:
    fields: Mapping[bytes, Reply] = (
        reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    )
    first = fields.get(b"first-entry")
    added = fields.get(b"entries-added")
    return StreamState(
        length=int(fields[b"length"]),
        last_id=fields[b"last-generated-id"].decode(),
        added=None if added is None else int(added),
        first_id=first[0].decode() if first else None,
    )


def entries(key: str, after: str, until: str, count: int) -> Command[list[Reply]]:
    """Returns a page of raw entries `[id, [field, value, …]]` in (`after`, `until`]."""
    return plain(list, "XRANGE", key, f"({after}", until, "COUNT", count)


def walk(key: str, after: str, count: int = WALK_PAGE) -> Command[Step]:
    """Skips `count` entries on the server, without transferring them."""
    return _WALK.call((key,), _WALK.args(after=after, limit=count), _step, Replay.SAFE)


def _step(reply: list[Reply]) -> Step:
    count, last_id, trimmed = reply
    return Step(int(count), last_id.decode(), None if int(trimmed) < 0 else int(trimmed))


@dataclass(frozen=True, slots=True)
class Page:
    """Entries after an id, and the state of the stream at the same moment."""

    state: StreamState
    before: int | None  # entries that the stream still holds up to the id read after, if asked for
    entries: list[tuple[str, dict[str, str]]]

    @property
    def trimmed(self) -> int | None:
        """The number of entries that were trimmed; None on servers that do not count."""
        return None if self.state.added is None else self.state.added - self.state.length


def follow(key: str, after: str, count: int, *, count_before: bool = False) -> Command[Page]:
    """Returns the next page after an id and the state of the stream, of one moment. A missing stream is empty."""
    args = _FOLLOW.args(after=after, limit=count, count_before=int(count_before))
    return _FOLLOW.call((key,), args, _page, Replay.SAFE)


def _page(reply: list[Reply]) -> Page:
    added, length, first, last, before, found = reply
    state = StreamState(
        length=int(length),
        last_id=last.decode(),
        added=None if int(added) < 0 else int(added),
        first_id=first.decode() or None,
    )
    return Page(state, None if int(before) < 0 else int(before), decoded_entries(found))


def stream_consumers(key: str, group: str) -> Command[list[dict[str, str | int]]]:
    """Returns the consumers of a group: name, pending entries, and milliseconds since their last command."""
    return plain(_consumers, "XINFO", "CONSUMERS", key, group)


def _consumers(reply: list[Reply]) -> list[dict[str, str | int]]:
    return [_mixed_fields(one) for one in reply]


def _mixed_fields(reply: Reply) -> dict[str, str | int]:
    flat: list[Reply] = list(flat_fields(reply))
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {
        name.decode(): value if isinstance(value, int) else value.decode(errors="replace")
        for name, value in pairs
    }
