"""Pages of envelopes for people: a part of a list or stream queue, of its scheduled jobs or of its dead letters.

Guarantee: nothing here changes a queue. A call reads a bounded number of envelopes and bytes, whatever their size: of a
long envelope both its ends are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from toril.commands.command import Command, Replay, Reply
from toril.commands.envelopes import EnvelopeKeys, jobs_key
from toril.commands.own_script import OwnScript
from toril.commands.pages import PAGE_BYTES, SEARCHED_BYTES, WINDOW_BYTES, WINDOW_JOBS
from toril.errors import InvalidOption
from toril.protocol.keys import ListKeys

# The ends of a long envelope: ids are at its beginning, times at its end.
ENVELOPE_HEAD: Final = 2 * 1024
ENVELOPE_TAIL: Final = 1024

_ENVELOPES = OwnScript(
    "envelope_page",
    keys="jobs",
    args="kind newest after limit head tail max_bytes max_found longest needle",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeRow:
    """An envelope of a page: its position, its score in a sorted set, its length, and its text or both ends of it."""

    position: str
    score: float | None
    length: int
    text: bytes
    tail: bytes  # empty: the text is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopePage:
    """Some envelopes, the number of all of them, and the position after which the next page begins (None: nowhere)."""

    total: int
    rows: list[EnvelopeRow]
    next: str | None
    examined: int


EnvelopePlace = Literal["jobs", "scheduled", "dlq"]


def envelope_page(
    keys: EnvelopeKeys,
    place: EnvelopePlace,
    *,
    after: str = "",
    newest_first: bool = True,
    limit: int = 50,
    max_bytes: int = 4 * PAGE_BYTES,
    needle: bytes = b"",
    max_found: int = 0,
) -> Command[EnvelopePage]:
    """Returns a page of the jobs, scheduled jobs or dead letters of a list or stream queue.

    With `needle`, of `limit` envelopes that are examined those that have it, until there are `max_found`.
    """
    kind = {"jobs": "list" if isinstance(keys, ListKeys) else "stream", "scheduled": "set", "dlq": "stream"}[
        place
    ]
    key = {"jobs": jobs_key(keys), "scheduled": keys.scheduled, "dlq": keys.dlq}[place]
    args = _ENVELOPES.args(
        kind=kind,
        newest=int(newest_first),
        after=_checked_position(after, kind),
        limit=limit,
        head=ENVELOPE_HEAD,
        tail=ENVELOPE_TAIL,
        max_bytes=max_bytes,
        max_found=max_found or limit,
        longest=SEARCHED_BYTES,
        needle=needle,
    )
    return _ENVELOPES.call((key,), args, _envelope_page, Replay.SAFE)


def envelope_search(
    keys: EnvelopeKeys,
    place: EnvelopePlace,
    needle: bytes,
    *,
    after: str = "",
    newest_first: bool = True,
    max_found: int = WINDOW_JOBS,
) -> Command[EnvelopePage]:
    """Searches the next window; of a long envelope, both its ends are searched."""
    return envelope_page(
        keys,
        place,
        after=after,
        newest_first=newest_first,
        limit=WINDOW_JOBS,
        max_bytes=WINDOW_BYTES,
        needle=needle,
        max_found=max_found,
    )


def _checked_position(after: str, kind: str) -> str:
    if not after:
        return "" if kind == "stream" else "0"
    parts = after.split("-") if kind == "stream" else [after]
    if len(parts) > 2 or not all(part.isdecimal() and len(part) <= 20 for part in parts):
        raise InvalidOption("after", f"{after[:100]!r} is no position", "take the one of a page's link")
    return after


def _envelope_page(reply: list[Reply]) -> EnvelopePage:
    total = int(reply[0])
    rows = [
        EnvelopeRow(
            position=position.decode(),
            score=float(score) if score else None,
            length=int(length),
            text=text,
            tail=tail,
        )
        for position, score, length, text, tail in reply[1]
    ]
    examined, last, is_end = int(reply[2]), reply[3].decode(), bool(reply[4])
    is_more = examined > 0 and not is_end
    return EnvelopePage(total=total, rows=rows, next=last if is_more else None, examined=examined)


def text_page(
    key: str, *, after: int = 0, newest_first: bool = True, limit: int = 100
) -> Command[EnvelopePage]:
    """Returns a page of any list of texts, such as the log of a job."""
    args = _ENVELOPES.args(
        kind="list",
        newest=int(not newest_first),  # a log grows at its end, a queue at its beginning
        after=after,
        limit=limit,
        head=ENVELOPE_HEAD,
        tail=ENVELOPE_TAIL,
        max_bytes=PAGE_BYTES,
        max_found=limit,
        longest=SEARCHED_BYTES,
        needle="",
    )
    return _ENVELOPES.call((key,), args, _envelope_page, Replay.SAFE)
