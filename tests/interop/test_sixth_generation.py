"""What BullMQ 6.7.0 added to the wire: toril on either end of a queue leaves the same keys as 6.7.0 on both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import pytest

from tests.interop.adapters import Side, keyspace_of
from tests.interop.application_adapter import ApplicationSide
from tests.interop.deduplication_rules import DeduplicationHistory
from tests.interop.difference import differences, report
from tests.interop.generations import comparable, three_clients
from tests.interop.keyspace import Keyspace
from tests.interop.lockstep import START_MS, Lockstep
from tests.interop.machine import run_random_histories
from tests.interop.reference import FIVE, SIX
from tests.interop.steps import Step
from tests.servers import Server
from toril import Queue
from toril.observe.doctor import Doctor

Turn: TypeAlias = tuple[Literal["producer", "worker", "world"], str, dict[str, Any]]
LATER = 60_000
KEEP = {"id": "same", "keepLastIfActive": True}


def _add(job_id: str, deduplication: dict[str, Any], **opts: Any) -> Turn:
    options = {"attempts": 1, "jobId": job_id, "deduplication": deduplication, **opts}
    return "producer", "add", {"name": f"name of {job_id}", "data": {"of": job_id}, "opts": options}


def _take(token: str = "t") -> Turn:
    return "worker", "pick_up", {"token": token, "worker": "w"}


def _complete(job_id: str, *, fetch_next: bool = False, token: str = "t") -> Turn:
    args = {"id": job_id, "value": 1, "token": token, "fetch_next": fetch_next, "worker": "w"}
    return "worker", "complete", args


def _fail(job_id: str, token: str = "t") -> Turn:
    error = {"name": "Error", "message": "no route", "stack": "trace"}
    return (
        "worker",
        "fail",
        {"id": job_id, "error": error, "token": token, "fetch_next": False, "worker": "w"},
    )


_ADVANCE: Turn = ("world", "advance", {"ms": LATER})
_BURST: Sequence[Turn] = (_add("a", KEEP), _take(), _add("b", KEEP), _add("c", KEEP))

TIMELINES: dict[str, Sequence[Turn]] = {
    "the last of a burst is stored": _BURST,
    "it is added when the active job completes": (*_BURST, _complete("a")),
    "the worker that completes the job may fetch it": (*_BURST, _complete("a", fetch_next=True)),
    "it is added when the active job fails for good": (*_BURST, _fail("a")),
    "it waits while the active job is retried": (
        _add("a", KEEP, attempts=2, backoff={"type": "fixed", "delay": LATER}),
        _take(),
        _add("b", KEEP),
        _fail("a"),
        _ADVANCE,
        _take(),
        _complete("a"),
    ),
    "it keeps its delay": (_add("a", KEEP), _take(), _add("b", KEEP, delay=LATER), _complete("a")),
    "it keeps its priority": (_add("a", KEEP), _take(), _add("b", KEEP, priority=7), _complete("a")),
    "it keeps its place at the front": (
        _add("a", KEEP),
        _add("x", {"id": "other"}),
        _take(),
        _add("b", KEEP, lifo=True),
        _complete("a"),
    ),
    "it may be followed by another one": (
        *_BURST,
        _complete("a", fetch_next=True),
        _add("d", KEEP),
        _complete("c"),
    ),
    "a duplicate of a waiting job is dropped": (_add("a", KEEP), _add("b", KEEP)),
    "without the option a duplicate of an active job is dropped": (
        _add("a", KEEP),
        _take(),
        _add("b", {"id": "same"}),
        _complete("a"),
    ),
    "a delayed job is replaced, and what was to follow it dropped": (
        _add("a", KEEP, attempts=2, backoff={"type": "fixed", "delay": LATER}),
        _take(),
        _add("b", KEEP),
        _fail("a"),
        _add("c", {**KEEP, "replace": True}, delay=LATER),
    ),
    "a key whose job does not exist is taken over": (
        _add("a", KEEP),
        ("world", "delete", {"suffixes": ["a", "wait"]}),
        _add("b", KEEP),
    ),
    "removing the job drops what was to follow it": (
        *_BURST,
        ("world", "delete", {"suffixes": ["a:lock"]}),
        ("producer", "remove", {"id": "a", "children": True}),
    ),
    "draining drops what was to follow": (
        _add("a", KEEP, attempts=2),
        _take(),
        _add("b", KEEP),
        _fail("a"),
        ("producer", "drain", {"delayed": False}),
    ),
    "cleaning delayed jobs drops what was to follow": (
        _add("a", KEEP, attempts=2, backoff={"type": "fixed", "delay": LATER}),
        _take(),
        _add("b", KEEP),
        _fail("a"),
        _ADVANCE,
        ("producer", "clean", {"grace": 0, "limit": 0, "state": "delayed"}),
    ),
    "cleaning waiting jobs drops what was to follow": (
        _add("a", KEEP, attempts=2),
        _take(),
        _add("b", KEEP),
        _fail("a"),
        _ADVANCE,
        ("producer", "clean", {"grace": 0, "limit": 0, "state": "wait"}),
    ),
    "a duplicate of a delayed job starts its delay again": (
        _add("a", {"id": "same", "reschedule": True}, delay=LATER),
        _ADVANCE,
        _add("b", {"id": "same", "reschedule": True}, delay=2 * LATER),
    ),
    "a duplicate of a job that waits changes nothing": (
        _add("a", {"id": "same", "reschedule": True}),
        _add("b", {"id": "same", "reschedule": True}, delay=LATER),
    ),
    "a retried job forgets its attempts": (
        _add("a", {"id": "other"}, attempts=1),
        _take(),
        _fail("a"),
        ("producer", "retry", {"id": "a", "state": "failed", "reset": {"made": True, "started": True}}),
    ),
    "a retried job forgets the attempts that ended": (
        _add("a", {"id": "other"}, attempts=1),
        _take(),
        _fail("a"),
        ("producer", "retry", {"id": "a", "state": "failed", "reset": {"made": True}}),
    ),
}
BESIDE_SIX = (("toril", "toril"), ("toril", SIX), (SIX, "toril"))


@pytest.fixture(scope="module")
def sides() -> Iterator[dict[str, Side]]:
    with three_clients() as made:
        yield made


@pytest.mark.parametrize("pair", BESIDE_SIX, ids=" adds, works ".join)
@pytest.mark.parametrize("title", TIMELINES)
def test_toril_leaves_the_keys_that_the_sixth_generation_leaves(
    sides: dict[str, Side], title: str, pair: tuple[str, str]
) -> None:
    reference = _live(TIMELINES[title], sides[SIX], sides[SIX])
    tested = _live(TIMELINES[title], sides[pair[0]], sides[pair[1]])
    found = differences(reference, tested)
    assert not found, report(found, left="6.7.0", right=", ".join(pair))


@pytest.mark.timeout(300)
def test_random_duplicates_look_the_same_to_the_sixth_generation(sides: dict[str, Side]) -> None:
    with Server.valkey() as server:
        tested = ApplicationSide(server)
        try:
            lockstep = Lockstep(sides[SIX], tested, same_tokens=False, comparable=comparable)
            run_random_histories(
                lockstep, sequences=25, steps=25, fixed=True, shrink=False, history=DeduplicationHistory
            )
            assert lockstep.tally.sequences >= 25
            assert lockstep.tally.by_operation["complete"] > 0
        finally:
            tested.close()


@pytest.mark.parametrize("producer", ["toril", SIX])
async def test_a_job_that_the_fifth_generation_left_behind_is_added_by_the_sweep(
    sides: dict[str, Side], producer: str
) -> None:
    toril = sides["toril"]
    left = _live([*_BURST, _complete("a")], sides[producer], sides[FIVE])
    assert "bull:q:dn:same" in left
    diagnosis = await Doctor(f"redis://127.0.0.1:{_port(toril)}").examine()
    assert any("keepLastIfActive" in one.message for one in diagnosis.problems())
    toril.do(Step("requeue_left"))
    after = keyspace_of(toril)
    assert "bull:q:dn:same" not in after
    assert after["bull:q:wait"].content == ["c"]


async def test_the_repair_adds_a_job_that_the_fifth_generation_left_behind(sides: dict[str, Side]) -> None:
    toril = sides["toril"]
    _live([*_BURST, _complete("a")], sides[SIX], sides[FIVE])
    (repairs,) = await Doctor(f"redis://127.0.0.1:{_port(toril)}").repair()
    assert repairs.next_jobs == ["c"]
    assert "bull:q:dn:same" not in keyspace_of(toril)


def test_a_stored_job_stays_while_its_predecessor_is_not_finished(sides: dict[str, Side]) -> None:
    toril = sides["toril"]
    before = _live(_BURST, sides[SIX], toril)
    toril.do(Step("requeue_left"))
    assert not differences(before, comparable(keyspace_of(toril)))


async def test_obliterating_deletes_what_was_to_follow(sides: dict[str, Side]) -> None:
    _live(_BURST, sides[SIX], sides["toril"])
    async with Queue("q", redis=f"redis://127.0.0.1:{_port(sides['toril'])}") as queue:
        await queue.obliterate(force=True)
    assert not keyspace_of(sides["toril"])


def _live(turns: Sequence[Turn], producer: Side, worker: Side) -> Keyspace:
    for side in (worker, producer):
        side.reset()
    now = START_MS
    for side in (producer, worker):
        side.set_clock(now)
    for who, op, args in turns:
        if op == "advance":
            now += args["ms"]
            for side in (producer, worker):
                side.set_clock(now)
        elif op == "delete":
            worker.client.delete(*(f"bull:q:{suffix}" for suffix in args["suffixes"]))
        else:
            outcome = (producer if who == "producer" else worker).do(Step(op, args))
            assert outcome.refused is None, f"{op} {args}: {outcome.refused}"
    return comparable(keyspace_of(worker))


def _port(side: Side) -> int:
    return int(side.client.connection_pool.connection_kwargs["port"])
