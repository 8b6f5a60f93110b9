"""Pages of jobs for people: a part of one state of a queue, and the search in it.

Guarantee: nothing here changes a queue. A call reads a bounded number of jobs and bytes, whatever the size of the queue
and of its jobs: of a long value the length is returned. A page continues after the last job of the page before, also
when jobs came or went meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toril.commands.command import Command, Replay, Reply, plain
from toril.commands.own_script import OwnScript
from toril.errors import InvalidOption
from toril.protocol.keys import QueueKeys
from toril.protocol.state import JobState

# Fifty rows with all their values are well below the 256 KB that a page may read from the server.
PAGE_BYTES: Final = 160 * 1024
# A longer value is not shown in a row.
ROW_VALUE_BYTES: Final = 2 * 1024
# A window of a search: about 1 ms of the server's time, so that it stays below 10 ms on a busy machine.
WINDOW_JOBS: Final = 150
WINDOW_BYTES: Final = 128 * 1024
# A longer value is not copied by the script: it is read by itself and searched by the client.
SEARCHED_BYTES: Final = 64 * 1024

ROW_FIELDS: Final = (
    "name", "data", "timestamp", "delay", "priority", "processedOn", "finishedOn", "atm", "attemptsMade", "ats", "stc",
    "progress", "failedReason", "pb", "parentKey", "rjk", "deid",
)  # fmt: skip
SEARCH_FIELDS: Final = ("name", "data", "failedReason")
_LISTS: Final = frozenset({JobState.WAITING, JobState.PAUSED, JobState.ACTIVE})

_JOBS = OwnScript(
    "job_page",
    keys="state",
    args="base kind newest place last_id last_score limit longest max_bytes",
    each="field",
)
_FLOW = OwnScript("flow_tree", keys="root", args="max_depth max_children max_nodes longest")
_FIELDS = OwnScript("job_fields", keys="job", args="longest max_bytes", each="field")
_SEARCH = OwnScript(
    "job_search",
    keys="state",
    args="base kind newest place last_id last_score limit longest max_bytes max_found needle name time_field since_ms "
    "until_ms",
    each="field",
)
# A value that was read, the length of one that was too long, or None for a field that is not there.
PageValue = bytes | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePosition:
    """After which job a page begins: its place in the state, its id and its score."""

    place: int = 0
    last_id: str = ""
    last_score: str = ""

    def __str__(self) -> str:
        return f"{self.place}~{self.last_score}~{self.last_id}" if self.last_id else ""

    @classmethod
    def parse(cls, text: str) -> PagePosition:
        """Returns the position that `str()` wrote; an empty text is the first page."""
        if not text:
            return cls()
        place, _, rest = text.partition("~")
        score, tilde, last_id = rest.partition("~")
        if not place.isdecimal() or len(place) > 15 or not tilde or not _is_number(score):
            raise InvalidOption("after", f"{text[:100]!r} is no position", "take the one of a page's link")
        return cls(place=int(place), last_id=last_id, last_score=score)


def _is_number(text: str) -> bool:
    try:
        return not text or abs(float(text)) >= 0
    except ValueError:
        return False


FIRST_PAGE: Final = PagePosition()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A job of a page: its id, its score in the state (None in a list) and its fields."""

    id: str
    score: float | None
    fields: Mapping[str, PageValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Some jobs of a state, the number of all of them, and where the next page begins (None: nowhere)."""

    total: int
    first: int  # the place of the first row, from 0
    rows: list[PageRow]
    next: PagePosition | None


def job_page(
    keys: QueueKeys,
    state: JobState,
    *,
    after: PagePosition = FIRST_PAGE,
    newest_first: bool = True,
    limit: int = 50,
    fields: Sequence[str] = ROW_FIELDS,
) -> Command[JobPage]:
    """Returns a page of the jobs of a state."""
    args = _JOBS.args(
        base=keys.base,
        **_window(state, after, newest_first),
        limit=limit,
        longest=ROW_VALUE_BYTES,
        max_bytes=PAGE_BYTES,
    )
    decode = functools.partial(_job_page, tuple(fields))
    return _JOBS.call((keys.base + state.suffix,), [*args, *fields], decode, Replay.SAFE)


def _window(state: JobState, after: PagePosition, newest_first: bool) -> dict[str, str | int]:
    return {
        "kind": "list" if state in _LISTS else "set",
        "newest": int(newest_first),
        "place": after.place,
        "last_id": after.last_id,
        "last_score": after.last_score,
    }


def _job_page(fields: tuple[str, ...], reply: list[Reply]) -> JobPage:
    total, first, raw = int(reply[0]), int(reply[1]), reply[2]
    rows = [
        PageRow(
            id=job_id.decode(errors="replace"),
            score=float(score) if score else None,
            fields=dict(zip(fields, values, strict=True)),
        )
        for job_id, score, values in raw
    ]
    ended = first + len(rows) >= total or not rows
    return JobPage(total=total, first=first, rows=rows, next=None if ended else _after(first, raw))


def _after(first: int, raw: list[Reply]) -> PagePosition:
    job_id, score, _ = raw[-1]
    return PagePosition(
        place=first + len(raw), last_id=job_id.decode(errors="replace"), last_score=score.decode()
    )


def job_fields(
    keys: QueueKeys, job_id: str, fields: Sequence[str], *, longest: int, max_bytes: int
) -> Command[dict[str, PageValue]]:
    """Returns fields of one job; of values longer than `longest` their length."""
    args = [*_FIELDS.args(longest=longest, max_bytes=max_bytes), *fields]
    decode = functools.partial(_named, tuple(fields))
    return _FIELDS.call((keys.job(job_id),), args, decode, Replay.SAFE)


def _named(fields: tuple[str, ...], reply: list[Reply]) -> dict[str, PageValue]:
    return dict(zip(fields, reply, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are meant: a part of the id or of a field, a name, from and until when. Empty parts mean all jobs."""

    text: str = ""
    name: str = ""
    since_ms: int = 0
    until_ms: int = 0

    def __bool__(self) -> bool:
        return bool(self.text or self.name or self.since_ms or self.until_ms)

    @property
    def needle(self) -> bytes:
        """The text as it is compared: capital letters of ASCII are small."""
        return self.text.encode(errors="replace").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchWindow:
    """What one call of a search examined, and where the next begins (None: the state ends here)."""

    total: int
    examined: int
    found: list[str]
    large: list[str]  # jobs with a value that was too long for the script
    next: PagePosition | None


def job_search(
    keys: QueueKeys,
    state: JobState,
    wanted: JobFilter,
    *,
    after: PagePosition = FIRST_PAGE,
    newest_first: bool = True,
    max_found: int = WINDOW_JOBS,
) -> Command[SearchWindow]:
    """Searches the next window of a state."""
    args = _SEARCH.args(
        base=keys.base,
        **_window(state, after, newest_first),
        limit=WINDOW_JOBS,
        longest=SEARCHED_BYTES,
        max_bytes=WINDOW_BYTES,
        max_found=max_found,
        needle=wanted.needle,
        name=wanted.name,
        time_field="score" if state.is_final else "timestamp",
        since_ms=wanted.since_ms,
        until_ms=wanted.until_ms,
    )
    return _SEARCH.call((keys.base + state.suffix,), [*args, *SEARCH_FIELDS], _search_window, Replay.SAFE)


def _search_window(reply: list[Reply]) -> SearchWindow:
    total, first, examined = int(reply[0]), int(reply[1]), int(reply[2])
    last_id, last_score = reply[3].decode(errors="replace"), reply[4].decode()
    reached = first + examined
    next_position = PagePosition(place=reached, last_id=last_id, last_score=last_score)
    return SearchWindow(
        total=total,
        examined=examined,
        found=[one.decode(errors="replace") for one in reply[5]],
        large=[one.decode(errors="replace") for one in reply[6]],
        next=next_position if examined and reached < total else None,
    )


def field_length(keys: QueueKeys, job_id: str, field: str) -> Command[int]:
    """Returns the length of a field of a job; 0 when there is none."""
    return plain(int, "HSTRLEN", keys.job(job_id), field)


# A hash with more fields is none of a job.
MOST_FIELDS: Final = 100


def job_field_names(keys: QueueKeys, job_id: str) -> Command[list[str]]:
    """Returns the names of the fields of a job; none when there is no such job."""
    return plain(_field_names, "HKEYS", keys.job(job_id))


def _field_names(reply: list[bytes]) -> list[str]:
    return [name.decode(errors="replace") for name in reply[:MOST_FIELDS] if len(name) <= 200]


@dataclass(frozen=True, slots=True)
class ChildCounts:
    """How many children a job has by how they ended."""

    waiting: int
    processed: int
    failed: int
    ignored: int

    @property
    def total(self) -> int:
        return self.waiting + self.processed + self.failed + self.ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A job of a flow, by the key of its hash."""

    key: str
    parent: int | None  # the place of its parent among the nodes
    name: str
    error: str
    children: ChildCounts


def flow_tree(
    keys: QueueKeys, job_id: str, *, max_depth: int, max_children: int, max_nodes: int
) -> Command[list[FlowNode]]:
    """Returns a job and its children, level by level; of many children some of each kind."""
    args = _FLOW.args(
        max_depth=max_depth, max_children=max_children, max_nodes=max_nodes, longest=ROW_VALUE_BYTES
    )
    return _FLOW.call((keys.job(job_id),), args, _flow_nodes, Replay.SAFE)


def _flow_nodes(reply: list[Reply]) -> list[FlowNode]:
    return [
        FlowNode(
            key=key.decode(errors="replace"),
            parent=int(parent) - 1 if int(parent) else None,
            name=name.decode(errors="replace"),
            error=error.decode(errors="replace"),
            children=ChildCounts(*map(int, counts)),
        )
        for key, parent, name, error, *counts in reply
    ]
