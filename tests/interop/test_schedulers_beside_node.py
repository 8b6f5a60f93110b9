"""Schedulers and flows beside Node's: the same keyspace after every step, and every cron pattern read alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.interop.adapters import NodeSide
from tests.interop.application_adapter import ApplicationSide
from tests.interop.cron_patterns import compare, random_cases
from tests.interop.lockstep import Lockstep
from tests.interop.reference import Reference
from tests.interop.steps import Step
from tests.servers import Server
from toril.protocol.cron import CronGeneration

WORKER = {"token": "t1", "worker": "w1"}


@pytest.fixture(scope="module")
def two_servers() -> Iterator[tuple[Server, Server]]:
    with Server.valkey() as left, Server.valkey() as right:
        yield left, right


@pytest.fixture
def lockstep(bullmq: Reference, two_servers: tuple[Server, Server]) -> Iterator[Lockstep]:
    with ExitStack() as stack:
        node, tested = NodeSide(bullmq, two_servers[0]), ApplicationSide(two_servers[1])
        stack.callback(node.close)
        stack.callback(tested.close)
        stack.callback(bullmq.set_clock, None)
        made = Lockstep(node, tested, same_tokens=False)
        made.begin()
        yield made


def scheduler(scheduler_id: str, repeat: dict[str, Any], **template: Any) -> Step:
    given = {
        "name": "report",
        "data": {"n": 1},
        "opts": {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}},
    }
    return Step("upsert_scheduler", {"id": scheduler_id, "repeat": repeat, "template": {**given, **template}})


def pick_up(lockstep: Lockstep) -> str:
    taken = lockstep.do(Step("pick_up", WORKER)).value
    assert taken is not None
    return str(taken["id"])


def complete(lockstep: Lockstep, job_id: str) -> None:
    args = {"id": job_id, "value": 1, "fetch_next": False, **WORKER}
    lockstep.do(Step("complete", args))


def completed(lockstep: Lockstep) -> int:
    """Returns the number of completed jobs on Node's server; ours has the same, or the last step had failed."""
    found: Any = lockstep.reference.client.zcard("bull:q:completed")
    return int(found)


def delayed(lockstep: Lockstep) -> list[tuple[bytes, float]]:
    """Jobs that wait for their time on Node's server, with their scores, soonest first."""
    found: Any = lockstep.reference.client.zrange("bull:q:delayed", 0, -1, withscores=True)
    return [(member, float(score)) for member, score in found]


def next_due(lockstep: Lockstep) -> int | None:
    """When the first of them is due (ms)."""
    return next((int(score / 4096) for _, score in delayed(lockstep)), None)


DAY = 86_400_000
START = 1_700_000_000_000

SCHEDULES: list[dict[str, Any]] = [
    {"every": 5000},
    {"every": 5000, "limit": 2},
    {"every": 60_000, "startDate": START + 30_000},
    {"pattern": "*/5 * * * * *", "tz": "UTC"},
    {"pattern": "0 3 * * *", "tz": "Europe/Zurich"},
    {"pattern": "* * * * *", "tz": "UTC", "limit": 2, "endDate": START + DAY},
    {"pattern": "0 0 * * *", "tz": "America/New_York", "startDate": START + 3 * DAY},
    {"pattern": "0 0 1 * *", "tz": "UTC", "immediately": True},
]


@pytest.mark.parametrize("repeat", SCHEDULES, ids=json.dumps)
def test_a_series_leaves_what_node_leaves(lockstep: Lockstep, repeat: dict[str, Any]) -> None:
    lockstep.do(scheduler("series", repeat))
    for _ in range(3):
        waits = lockstep.reference.client.zcard("bull:q:delayed") or lockstep.reference.client.llen(
            "bull:q:wait"
        )
        if not waits:
            break
        due = next_due(lockstep)
        lockstep.do(Step("advance", {"ms": 10 if due is None else max(0, due - lockstep.now) + 10}))
        complete(lockstep, pick_up(lockstep))
    assert completed(lockstep) == repeat.get("limit", 3)


def test_changing_and_removing_a_scheduler_leaves_what_node_leaves(lockstep: Lockstep) -> None:
    lockstep.do(scheduler("series", {"pattern": "0 3 * * *", "tz": "UTC"}))
    lockstep.do(scheduler("series", {"pattern": "0 3 * * *", "tz": "UTC"}, data={"n": 2}))
    lockstep.do(scheduler("other", {"every": 5000}, data={}))
    lockstep.do(scheduler("other", {"every": 5000}, opts={"attempts": 3, "priority": 2}))
    lockstep.do(Step("remove_scheduler", {"id": "series"}))
    job_id = pick_up(lockstep)
    lockstep.do(Step("remove_scheduler", {"id": "other"}))
    complete(lockstep, job_id)
    assert (completed(lockstep), delayed(lockstep)) == (1, [])


@pytest.mark.parametrize("stage", ["waiting", "active", "completed"])
@pytest.mark.parametrize("repeat", [{"pattern": "0 3 * * *", "tz": "UTC"}, {"every": 60_000}], ids=json.dumps)
def test_a_scheduler_that_is_set_again_after_a_run_was_promoted_leaves_what_node_leaves(
    lockstep: Lockstep, repeat: dict[str, Any], stage: str
) -> None:
    lockstep.do(scheduler("series", repeat))
    if "every" in repeat:
        complete(lockstep, pick_up(lockstep))  # the first run is due at once
    (found,) = delayed(lockstep)
    run = found[0].decode()
    lockstep.do(Step("promote", {"id": run}))
    if stage != "waiting":
        assert pick_up(lockstep) == run
    if stage == "completed":
        complete(lockstep, run)
    lockstep.do(scheduler("series", repeat, data={"n": 2}))
    lockstep.do(scheduler("series", repeat, data={"n": 3}))
    lockstep.do(Step("advance", {"ms": 2 * DAY}))
    if stage == "active":
        complete(lockstep, run)
    complete(lockstep, pick_up(lockstep))
    lockstep.do(scheduler("series", repeat, data={"n": 4}))


def test_an_interval_that_was_slept_through_leaves_what_node_leaves(lockstep: Lockstep) -> None:
    lockstep.do(scheduler("series", {"every": 5000}))
    complete(lockstep, pick_up(lockstep))
    lockstep.do(Step("advance", {"ms": 60_000}))
    complete(lockstep, pick_up(lockstep))
    lockstep.do(Step("advance", {"ms": 10_000}))
    complete(lockstep, pick_up(lockstep))
    assert completed(lockstep) == 3
    assert len(delayed(lockstep)) + lockstep.reference.client.llen("bull:q:wait") == 1  # the series goes on


OLD_KIND: list[dict[str, Any]] = [
    {"every": 5000},
    {"every": 5000, "limit": 2},
    {"pattern": "*/5 * * * * *", "tz": "UTC"},
    {"pattern": "0 3 * * *", "tz": "Europe/Zurich", "key": "nightly"},
    {"pattern": "*/10 * * * * *", "tz": "UTC", "endDate": START + 25_000},
]


@pytest.mark.parametrize("repeat", OLD_KIND, ids=json.dumps)
def test_a_repeatable_job_that_node_added_the_old_way_goes_on_under_our_worker(
    bullmq: Reference, two_servers: tuple[Server, Server], lockstep: Lockstep, repeat: dict[str, Any]
) -> None:
    """Node adds it on both servers; from then on Node works on one of them and toril on the other."""
    other = bullmq.bench("q", url=two_servers[1].url)
    try:
        add = {"name": "old", "data": {"n": 1}, "opts": {"attempts": 3, "repeat": repeat}}
        for call in (lockstep.reference._bench.call, other.call):  # type: ignore[attr-defined]
            call("add", **add)
        lockstep._compare(None)
        for _ in range(3):
            due = next_due(lockstep)
            if due is None:
                break
            lockstep.do(Step("advance", {"ms": max(0, due - lockstep.now) + 10}))
            complete(lockstep, pick_up(lockstep))
    finally:
        other.close()
    assert completed(lockstep) == (2 if "limit" in repeat or "endDate" in repeat else 3)


def flow(name: str, *children: dict[str, Any], queue: str = "q", **opts: Any) -> dict[str, Any]:
    given = {"jobId": f"id-{name}", "attempts": 3, "backoff": {"type": "exponential", "delay": 1000}, **opts}
    return {"name": name, "queueName": queue, "data": {"of": name}, "opts": given, "children": list(children)}


FLOWS = [
    flow("alone"),
    flow("parent", flow("first"), flow("second")),
    flow(
        "root",
        flow("left", flow("leaf"), queue="other"),
        flow("right", priority=3),
        flow("late", delay=60_000),
    ),
    flow("root", flow("a", flow("a1"), flow("a2")), flow("b", flow("b1", queue="other"))),
    flow("parent", flow("child", failParentOnFailure=True), flow("other", ignoreDependencyOnFailure=True)),
    flow("delayed", flow("child", lifo=True), delay=60_000),
]


@pytest.mark.parametrize("family", FLOWS, ids=lambda family: f"{family['name']}-{len(json.dumps(family))}")
def test_a_flow_leaves_what_node_leaves(lockstep: Lockstep, family: dict[str, Any]) -> None:
    lockstep.do(Step("add_flow", {"flow": family}))
    lockstep.do(Step("add_flow", {"flow": family}))  # again: what exists is left alone
    while lockstep.reference.client.llen("bull:q:wait"):
        complete(lockstep, pick_up(lockstep))
    assert completed(lockstep) > 0


# --- cron -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "hashed"), [(5, False), (6, False), (6, True)])
def test_random_patterns_come_true_when_node_says_so_also_when_clocks_change(
    generation: CronGeneration, hashed: bool
) -> None:
    cases = list(random_cases(seed=20_251_026, count=270, hashed=hashed))
    different, understood = compare(cases, generation)
    assert different == []
    assert understood > 200
