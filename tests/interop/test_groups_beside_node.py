"""Groups with a plain BullMQ worker of Node on the queue: it serves them in turns as well."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.groups import tenants
from tests.groups.orders import FAIR_AFTER, SIZES, add_tenants
from tests.interop.reference import Reference
from tests.servers import Server
from tests.waiting import until, until_equal
from toril import GroupLimits, Job, Queue, Worker
from toril.errors import JobNotInState


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 2])
async def test_a_plain_worker_of_node_serves_groups_in_turns(bullmq: Reference, workers: int) -> None:
    """Alone, and beside workers of toril."""
    with Server.valkey() as server:
        bench = bullmq.bench(tenants.QUEUE, url=server.url)
        order = await tenants.run(server.url, workers=workers, bench=bench)
        bench.close()
    assert len(order) == sum(SIZES.values())
    in_flight = tenants.NODE_CONCURRENCY + workers * tenants.CONCURRENCY
    assert max(tenants.last_places(order).values()) <= FAIR_AFTER + in_flight


async def test_node_sees_held_jobs_and_what_it_runs_frees_its_slot(bullmq: Reference) -> None:
    with Server.valkey() as server:
        bench = bullmq.bench("tenants", url=server.url)
        bench.call("reset")
        opened = asyncio.Event()

        async def handle(_: Job[Any]) -> None:
            await opened.wait()

        async with Queue("tenants", redis=server.url) as queue:
            await queue.set_group_limits("a", GroupLimits(concurrency=1))
            await add_tenants(queue, {"a": 3})
            async with Worker("tenants", handle, redis=server.url, concurrency=5):
                await until_equal(lambda: _counts(queue), (1, 2))
                assert {one["id"] for one in bench.call("jobs", states=["delayed"])} == {"a-1", "a-2"}
                await bench.start_worker("w")  # it knows nothing of limits, and runs what is promoted by hand
                held = await queue.get_job("a-1")
                assert held is not None
                await until(lambda: _promoted_until_run(held), "Node's worker ran it")
                await bench.stop("w")
                opened.set()
                await until_equal(lambda: _completed(queue), 3)
        bench.close()


async def _promoted_until_run(job: Job[Any]) -> bool:
    """Promotes it again if toril's worker was first: it is held again then."""
    state = await job.get_state()
    if state == "delayed":
        with contextlib.suppress(JobNotInState):
            await job.promote()
    return state == "completed"


async def _counts(queue: Queue) -> tuple[int, int]:
    counts = await queue.get_job_counts()
    return counts.active, counts.delayed


async def _completed(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed
