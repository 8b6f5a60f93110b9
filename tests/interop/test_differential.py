"""Random histories of a queue leave the same keyspace and events through toril as through Node, after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.adapters import STRICT
from tests.interop.application_adapter import ApplicationSide
from tests.interop.conftest import MakeLockstep
from tests.interop.lockstep import Lockstep
from tests.interop.machine import run_random_histories
from tests.interop.steps import RECORDINGS, Step, load

QUICK_SEQUENCES = 40
STEPS = 25


@pytest.mark.timeout(300)
def test_random_histories_look_the_same_to_node(lockstep: Lockstep) -> None:
    run_random_histories(lockstep, sequences=QUICK_SEQUENCES, steps=STEPS, fixed=True)
    assert lockstep.tally.sequences >= QUICK_SEQUENCES
    assert lockstep.tally.by_operation["complete"] > 0
    print(f"{lockstep.tally.sequences} sequences, {lockstep.tally.steps} steps, no difference")


@pytest.mark.timeout(300)
def test_workers_with_a_rate_limit_and_metrics_look_the_same_to_node(make_lockstep: MakeLockstep) -> None:
    lockstep = make_lockstep(lambda server: ApplicationSide(server, STRICT), same_tokens=False, rules=STRICT)
    run_random_histories(lockstep, sequences=QUICK_SEQUENCES // 2, steps=STEPS, fixed=True)
    assert lockstep.tally.sequences >= QUICK_SEQUENCES // 2
    assert lockstep.tally.steps > lockstep.tally.sequences


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_differed_is_alike_now(lockstep: Lockstep, recording: Path) -> None:
    steps = list(load(recording))
    lockstep.replay(steps)
    assert lockstep.steps == steps


def _add(job_id: str, parent: str | None = None, **opts: Any) -> Step:
    named = {} if parent is None else {"parent": {"id": parent, "queue": "bull:q"}}
    return Step(
        "add", {"name": "mail", "data": {}, "opts": {"jobId": job_id, "attempts": 1, **named, **opts}}
    )


def _take(token: str) -> Step:
    return Step("pick_up", {"token": token, "worker": "w1"})


def _complete(job_id: str, token: str) -> Step:
    args = {"id": job_id, "token": token, "value": 1, "fetch_next": False, "worker": "w1"}
    return Step("complete", args)


def _fail(job_id: str, token: str) -> Step:
    error = {"name": "Error", "message": "no", "stack": "trace"}
    args = {"id": job_id, "token": token, "error": error, "fetch_next": False, "worker": "w1"}
    return Step("fail", args)


def _run_handler(token: str, *, waits: bool = False, child: str | None = None) -> Step:
    return Step("run_handler", {"id": "p", "token": token, "value": 7, "waits": waits, "child": child})


_BACKOFF = {"type": "fixed", "delay": 10_000}
_WITH_A_CHILD = [_add("p"), _take("t1"), _add("c", "p")]
_WITH_A_FAILED_CHILD = [
    _add("p", attempts=3),
    _take("t1"),
    _add("c", "p", failParentOnFailure=True),
    _take("t2"),
    _fail("c", "t2"),
]
CHILDREN: dict[str, tuple[list[Step], str]] = {
    "a handler adds a child and returns": ([*_WITH_A_CHILD, _run_handler("t1")], "failed"),
    "it is tried again while attempts are left": (
        [_add("p", attempts=2, backoff=_BACKOFF), _take("t1"), _add("c", "p"), _run_handler("t1")],
        "delayed",
    ),
    "it is tried again at once without a backoff": (
        [_add("p", attempts=2), _take("t1"), _add("c", "p"), _run_handler("t1")],
        "wait",
    ),
    "a child fails its parent while that runs": ([*_WITH_A_FAILED_CHILD, _run_handler("t1")], "failed"),
    "a parent that its child had failed is retried": (
        [
            *_WITH_A_FAILED_CHILD,
            _run_handler("t1"),
            Step("retry", {"id": "p", "state": "failed"}),
            _take("t3"),
            _run_handler("t3"),
        ],
        "failed",
    ),
    "a handler waits for a child that has failed it": (
        [*_WITH_A_FAILED_CHILD, _run_handler("t1", waits=True)],
        "failed",
    ),
    "a handler waits and asks again": (
        [
            *_WITH_A_CHILD,
            _run_handler("t1", waits=True),
            _take("t2"),
            _complete("c", "t2"),
            _take("t3"),
            _run_handler("t3", waits=True),
        ],
        "completed",
    ),
    "a handler waits for one child": ([*_WITH_A_CHILD, _run_handler("t1", waits=True, child="c")], "waiting-children"),
    "a handler waits for a child that is no longer pending": (
        [*_WITH_A_CHILD, _take("t2"), _complete("c", "t2"), _run_handler("t1", waits=True, child="c")],
        "completed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", CHILDREN)
def test_a_handler_with_children_ends_as_in_node(make_lockstep: MakeLockstep, history: str) -> None:
    steps, state = CHILDREN[history]
    lockstep = make_lockstep(ApplicationSide, same_tokens=False)
    lockstep.replay(steps)
    entry = lockstep.keyspace.get(f"bull:q:{state}")
    rows: Any = [] if entry is None else entry.content
    assert "p" in [row if isinstance(row, str) else row[0] for row in rows]
    assert "bull:q:p:lock" not in lockstep.keyspace
