"""Repeatable jobs of the old kind (`queue.add(…, {repeat})`): a toril worker keeps their chain going as Node does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.adapters import QUEUE
from tests.interop.application_adapter import ApplicationSide
from tests.interop.conftest import MakeLockstep
from tests.interop.lockstep import Lockstep
from tests.interop.reference import Bench, Reference
from tests.interop.steps import Outcome, Step
from tests.servers import Server
from toril import Queue

REPEATS = [
    {"every": 10_000},
    {"every": 10_000, "limit": 2},
    {"every": 60_000, "immediately": True},
    {"pattern": "*/10 * * * * *", "tz": "UTC"},
    {"pattern": "0 3 * * *", "tz": "Europe/Zurich"},
    {"pattern": "*/20 * * * * *", "tz": "UTC", "limit": 2},
    {"pattern": "*/30 * * * * *", "tz": "UTC", "key": "half-minute"},
]


class Inherited(ApplicationSide):
    """A queue whose repeatable jobs were added by Node: toril has no call for adding them, it only works them off."""

    def __init__(self, server: Server, bullmq: Reference) -> None:
        super().__init__(server)
        self._bench: Bench = bullmq.bench(QUEUE, url=server.url)

    def close(self) -> None:
        self._bench.close()
        super().close()

    def do(self, step: Step) -> Outcome:
        if "repeat" in step.args.get("opts", {}):
            return Outcome(self._bench.call(step.op, **step.args))
        return super().do(step)


@pytest.fixture
def inherited(make_lockstep: MakeLockstep, bullmq: Reference) -> Lockstep:
    lockstep = make_lockstep(lambda server: Inherited(server, bullmq), same_tokens=False)
    lockstep.begin()
    return lockstep


@pytest.mark.parametrize("repeat", REPEATS, ids=str)
def test_the_chain_of_a_repeatable_job_goes_on(inherited: Lockstep, repeat: dict[str, Any]) -> None:
    opts = {"repeat": repeat, "attempts": 2, "removeOnComplete": True}
    inherited.do(Step("add", {"name": "tick", "data": {"n": 1}, "opts": opts}))
    runs: list[str] = []
    for _ in range(4):
        inherited.do(Step("advance", {"ms": _until_due(inherited)}))
        taken = inherited.do(Step("pick_up", {"token": "t", "worker": "w"})).value
        if taken is None:
            break
        end = {"id": taken["id"], "value": 1, "token": "t", "fetch_next": False, "worker": "w"}
        inherited.do(Step("complete", end))
        runs.append(taken["id"])
    assert len(set(runs)) == repeat.get("limit", 4)


@pytest.mark.parametrize("repeat", REPEATS, ids=str)
async def test_repeatable_jobs_of_node_are_listed_and_removed_like_schedulers(
    bullmq: Reference, repeat: dict[str, Any]
) -> None:
    with Server.valkey() as server:
        bench = bullmq.bench(QUEUE, url=server.url)
        bench.call("reset")
        bench.call("add", name="tick", data={}, opts={"repeat": repeat})
        async with Queue(QUEUE, redis=server.url) as queue:
            (listed,) = await queue.schedulers.list()
            assert (listed.name, listed.cron) == ("tick", repeat.get("pattern"))
            assert listed.every == (repeat["every"] / 1000 if "every" in repeat else None)
            assert await queue.schedulers.remove(listed.id)
            assert await queue.schedulers.list() == []
            assert (await queue.get_job_counts()).delayed == 0
        bench.close()


def _until_due(lockstep: Lockstep) -> int:
    """Milliseconds to the next run, in the grain of the comparison."""
    rows: Any = lockstep.reference.client.zrange("bull:q:delayed", 0, 0, withscores=True)
    span = int(rows[0][1] // 4096) - lockstep.now if rows else 0
    return max(0, span)
