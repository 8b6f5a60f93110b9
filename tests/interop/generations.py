"""Two kinds of clients on one queue: what works and what does not, found by trying.

Each row is a short history in which a first and a second client take turns; its verdict is what became of the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tests.interop.adapters import QUEUE, NodeSide, Side, keyspace_of
from tests.interop.command_adapter import CommandSide
from tests.interop.keyspace import Keyspace
from tests.interop.lockstep import START_MS
from tests.interop.reference import FIVE, SIX, Reference
from tests.interop.scenarios import Result
from tests.interop.steps import Step
from tests.servers import Server

Turn: TypeAlias = tuple[Literal["first", "second", "world"], str, dict[str, Any]]
STATES = ("wait", "paused", "active", "prioritized", "delayed", "completed", "failed", "waiting-children")
LOCK_MS = 30_000
WORKS = "works"
PAIRS = (("toril", FIVE), (FIVE, "toril"), ("toril", SIX), (SIX, "toril"), (FIVE, SIX), (SIX, FIVE))
ERROR = {"name": "Error", "message": "no route", "stack": "trace"}


@dataclass(frozen=True, slots=True)
class Row:
    """A history, and in which state each job must be in the end."""

    title: str
    turns: Sequence[Turn]
    ends: dict[str, str]


def _add(who: Literal["first", "second"], job_id: str, **opts: Any) -> Turn:
    args = {"name": "n", "data": {"of": who}, "opts": {"attempts": 1, "jobId": job_id, **opts}}
    return who, "add", args


def _take(who: Literal["first", "second"], token: str = "t") -> Turn:
    return who, "pick_up", {"token": token, "worker": who}


def _complete(who: Literal["first", "second"], job_id: str, token: str = "t") -> Turn:
    return who, "complete", {"id": job_id, "value": 1, "token": token, "fetch_next": False, "worker": who}


def _fail(who: Literal["first", "second"], job_id: str, token: str = "t") -> Turn:
    return who, "fail", {"id": job_id, "error": ERROR, "token": token, "fetch_next": False, "worker": who}


_ADVANCE: Turn = ("world", "advance", {"ms": 60_000})

ROWS: Sequence[Row] = (
    Row(
        "one adds (plain, priority, delay), the other works",
        [
            _add("first", "plain"),
            _add("first", "ranked", priority=3),
            _add("first", "later", delay=60_000),
            _take("second"),
            _complete("second", "plain"),
            _take("second"),
            _fail("second", "ranked"),
            _ADVANCE,
            _take("second"),
        ],
        {"plain": "completed", "ranked": "failed", "later": "active"},
    ),
    Row(
        "one adds with attempts and backoff, the other fails and retries",
        [
            _add("first", "a", attempts=2, backoff={"type": "fixed", "delay": 60_000}),
            _take("second"),
            _fail("second", "a"),
            _ADVANCE,
            _take("first"),
            _fail("first", "a"),
        ],
        {"a": "failed"},
    ),
    Row(
        "one takes a job, the other extends its lock and ends it",
        [
            _add("first", "a"),
            _take("first"),
            ("second", "extend_lock", {"id": "a", "token": "t", "duration": LOCK_MS}),
            _complete("second", "a"),
        ],
        {"a": "completed"},
    ),
    Row(
        "one dies, the other recovers its jobs",
        [
            _add("first", "a"),
            _add("first", "b"),
            _take("first"),
            ("second", "sweep_stalled", {}),
            _ADVANCE,
            ("second", "sweep_stalled", {}),
            _take("second"),
        ],
        {"a": "active", "b": "wait"},
    ),
    Row(
        "one reports progress and logs, the other changes data and priority",
        [
            _add("first", "a"),
            ("second", "update_data", {"id": "a", "data": {"n": 2}}),
            ("second", "change_priority", {"id": "a", "priority": 2, "lifo": False}),
            _take("first"),
            ("second", "update_progress", {"id": "a", "progress": 50}),
            ("second", "log", {"id": "a", "line": "half way", "keep": 100}),
            _complete("first", "a"),
        ],
        {"a": "completed"},
    ),
    Row(
        "one's failed and delayed jobs are retried and promoted by the other",
        [
            _add("first", "a"),
            _take("first"),
            _fail("first", "a"),
            _add("first", "d", delay=60_000),
            ("second", "retry", {"id": "a", "state": "failed"}),
            ("second", "promote", {"id": "d"}),
        ],
        {"a": "wait", "d": "wait"},
    ),
    Row(
        "a duplicate of one's job is recognised by the other",
        [
            _add("first", "a", deduplication={"id": "same"}),
            _add("second", "b", deduplication={"id": "same"}),
        ],
        {"a": "wait"},
    ),
    Row(
        "one pauses, the other takes nothing",
        [
            _add("first", "a"),
            _add("second", "b"),
            ("first", "pause", {}),
            _take("second"),
            ("first", "resume", {}),
        ],
        {"a": "wait", "b": "wait"},
    ),
    Row(
        "one pauses, the other resumes and works",
        [_add("first", "a"), ("first", "pause", {}), ("second", "resume", {}), _take("second")],
        {"a": "active"},
    ),
    Row(
        "one pauses, the other adds, the first resumes",
        [_add("first", "a"), ("first", "pause", {}), _add("second", "b"), ("first", "resume", {})],
        {"a": "wait", "b": "wait"},
    ),
    Row(
        "one pauses, the other adds and resumes",
        [_add("first", "a"), ("first", "pause", {}), _add("second", "b"), ("second", "resume", {})],
        {"a": "wait", "b": "wait"},
    ),
    Row(
        "one adds, the other drains, cleans and obliterates",
        [
            _add("first", "a"),
            _add("first", "b"),
            _take("first"),
            _complete("first", "a"),
            ("second", "drain", {"delayed": True}),
            ("second", "clean", {"grace": 0, "limit": 0, "state": "completed"}),
            ("second", "obliterate", {"force": True}),
        ],
        {},
    ),
)


def ack_error(row: Row, first: Side, second: Side) -> str:
    """`works`, or what went wrong in words."""
    refused = _live(row, first, second)
    keyspace = keyspace_of(first)
    lost = sorted(job_id for job_id in _jobs(keyspace) if _state(keyspace, job_id) is None)
    if lost:
        return f"**loses jobs** ({', '.join(lost)})"
    found = {job_id: _state(keyspace, job_id) for job_id in _jobs(keyspace)}
    wrong = {job_id for job_id in found.keys() | row.ends.keys() if found.get(job_id) != row.ends.get(job_id)}
    if wrong:
        return "differs: " + ", ".join(f"{job_id} is {found.get(job_id)}" for job_id in sorted(wrong))
    return f"refused: {refused}" if refused else WORKS


def _live(row: Row, first: Side, second: Side) -> str | None:
    now = START_MS
    sides = {"first": first, "second": second}
    for side in (first, second):
        side.set_clock(now)
    for who, op, args in row.turns:
        if who == "world":
            now += args["ms"]
            first.set_clock(now)
            second.set_clock(now)
            _end_locks(first)
            continue
        outcome = sides[who].do(Step(op, args))
        if outcome.refused is not None:
            return f"{op} by the {who} ({outcome.refused})"
    return None


def _end_locks(side: Side) -> None:
    """Time has passed: whatever has a time to live is gone."""
    keys: Any = side.client.keys("*")
    for key in keys:
        left: Any = side.client.pttl(key)
        if left > 0:
            side.client.delete(key)


def _jobs(keyspace: Keyspace) -> list[str]:
    base = f"bull:{QUEUE}:"
    return [
        key.removeprefix(base)
        for key, entry in keyspace.items()
        if isinstance(entry.content, dict) and "timestamp" in entry.content
    ]


def _state(keyspace: Keyspace, job_id: str) -> str | None:
    for state in STATES:
        entry = keyspace.get(f"bull:{QUEUE}:{state}")
        rows: Any = [] if entry is None else entry.content
        if any(job_id in (row, row[0] if isinstance(row, tuple) else row) for row in rows):
            return "wait" if state == "paused" else state
    return None


def as_table(columns: Sequence[str], ack_errors: Sequence[Sequence[str]]) -> str:
    """The verdicts as a Markdown table, a row for each history."""
    head = ["| on one queue | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    body = [
        f"| {row.title} | " + " | ".join(cells) + " |" for row, cells in zip(ROWS, ack_errors, strict=True)
    ]
    return "\n".join([*head, *body])


@contextmanager
def three_clients() -> Iterator[dict[str, Side]]:
    """toril and both generations of Node on one server of their own."""
    with Server.valkey() as server, Reference() as five, Reference(SIX) as six, ExitStack() as stack:
        made: dict[str, Side] = {
            "toril": CommandSide(server, batched=True),
            FIVE: NodeSide(five, server, FIVE),
            SIX: NodeSide(six, server, SIX),
        }
        for side in made.values():
            stack.callback(side.close)
        yield made


def tried(row: Row, first: Side, second: Side) -> str:
    """The verdict on two empty-handed clients."""
    for side in (second, first):
        side.reset()
    return ack_error(row, first, second)


def tabulated(sides: Mapping[str, Side]) -> str:
    columns = [f"{first}, then {second}" for first, second in PAIRS]
    cells = [[tried(row, sides[first], sides[second]) for first, second in PAIRS] for row in ROWS]
    return as_table(columns, cells)


def comparable(keyspace: Keyspace) -> Keyspace:
    """Without the version, and without `debounced`, which only the fifth generation writes beside `deduplicated`."""
    kept: Keyspace = {}
    for key, entry in keyspace.items():
        content: Any = entry.content
        if key.endswith(":meta"):
            content = {name: value for name, value in content.items() if name != "version"}
        if key.endswith(":events"):
            content = [one for one in content if one["event"] not in ("debounced", "drained")]
        if content:
            kept[key] = replace(entry, content=content)
    return kept


def compare_generations() -> Result:
    """Every row with toril on either side; what does not work is a difference."""
    wrong: list[str] = []
    pairs = [pair for pair in PAIRS if "toril" in pair]
    with three_clients() as sides:
        for row in ROWS:
            for first, second in pairs:
                found = tried(row, sides[first], sides[second])
                if found != WORKS:
                    wrong.append(f"{row.title}, {first} then {second}: {found}")
    return Result(
        scenario="toril beside BullMQ 5.62.0 and 6.7.0", jobs=len(ROWS) * len(pairs), differences=wrong
    )
