"""Node and toril share a queue: the jobs of each are done by the other, once, and nobody notices a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop import scenarios
from tests.interop.reference import SIX, Reference
from tests.interop.scenarios import Ground
from tests.interop.shadow import shadow
from tests.interop.traces import traces_continue
from tests.servers import Server
from toril import Worker

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def ground(valkey: Server, prefix: str, bullmq: Reference) -> Ground:
    bullmq.set_clock(None)
    return Ground(valkey, prefix, bullmq)


@pytest.fixture(scope="module")
def bullmq6() -> Iterator[Reference]:
    with Reference(SIX) as reference:
        yield reference


@pytest.fixture
def next_generation(valkey: Server, prefix: str, bullmq6: Reference) -> Ground:
    return Ground(valkey, prefix, bullmq6)


async def test_a_toril_worker_does_what_a_node_producer_asks(ground: Ground) -> None:
    result = await scenarios.node_producer_toril_worker(ground, 200)
    assert result.differences == []


async def test_a_node_worker_does_what_a_toril_producer_asks(ground: Ground) -> None:
    result = await scenarios.toril_producer_node_worker(ground, 200)
    assert result.differences == []


async def test_node_hears_the_same_events_whoever_works(ground: Ground) -> None:
    result = await scenarios.events_alike(ground, 100)
    assert result.differences == []


async def test_node_runs_a_job_that_a_toril_worker_put_back_for_its_name(ground: Ground) -> None:
    async def old(_: Any) -> None: ...

    async with ground.bench() as bench, ground.queue() as queue:
        job = await queue.add("new", {}, attempts=1)
        worker = Worker(queue.name, {"old": old}, redis=ground.server.url, prefix=ground.prefix)
        async with asyncio.timeout(30), worker:
            await worker.run_until_idle()
        assert await job.get_state() == "delayed"
        view = await bench.ask("job", id=job.id)
        assert (view["attempts_made"], view["attempts_started"], view["name"]) == (0, 1, "new")
        await bench.start_worker(f"{ground.prefix}-worker", concurrency=1)
        await scenarios.until_ended(ground, 1)
        await bench.stop(f"{ground.prefix}-worker")
        await job.refresh()
        assert (await job.get_state(), job.attempts_made) == ("completed", 1)


async def test_each_side_awaits_jobs_that_the_other_finishes(ground: Ground) -> None:
    result = await scenarios.finishes_awaited(ground, 50)
    assert result.differences == []


async def test_toril_finishes_the_jobs_of_a_killed_node_worker(ground: Ground) -> None:
    result = await scenarios.toril_recovers_what_node_left(ground, 5)
    assert result.differences == []


async def test_node_finishes_the_jobs_of_a_killed_toril_worker(ground: Ground) -> None:
    result = await scenarios.node_recovers_what_toril_left(ground, 5)
    assert result.differences == []


async def test_workers_of_both_kinds_share_a_queue_without_losing_or_doubling_a_job(ground: Ground) -> None:
    result = await shadow(ground, 500)
    assert result.differences == []


async def test_a_trace_begun_in_one_language_goes_on_in_the_other(ground: Ground) -> None:
    result = await traces_continue(ground)
    assert result.differences == []


async def test_a_toril_worker_does_what_a_producer_of_the_next_generation_asks(
    next_generation: Ground,
) -> None:
    result = await scenarios.node_producer_toril_worker(next_generation, 200)
    assert result.differences == []


async def test_a_worker_of_the_next_generation_does_what_a_toril_producer_asks(
    next_generation: Ground,
) -> None:
    result = await scenarios.toril_producer_node_worker(next_generation, 200)
    assert result.differences == []


async def test_workers_of_toril_and_the_next_generation_share_a_queue(next_generation: Ground) -> None:
    result = await shadow(next_generation, 200)
    assert result.differences == []
