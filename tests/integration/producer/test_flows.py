"""Families of jobs: added in one step, run from the leaves to the root."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.hand import Hand
from tests.servers import Server, ValkeyCluster
from toril import FlowNode, FlowProducer, Job, JobOptions, Queue, Worker
from toril.contract.errors import Closed, CrossSlot, InvalidOption, JobFailed, PermanentError
from toril.contract.options import ParentRef
from toril.contract.state import JobState


@pytest.fixture
async def flows(server_url: str, prefix: str) -> AsyncIterator[FlowProducer]:
    async with FlowProducer(redis=server_url, prefix=prefix) as producer:
        yield producer


def house() -> FlowNode:
    walls = FlowNode(
        "walls", queue="building", data={"bricks": 900}, children=[FlowNode("foundation", queue="digging")]
    )
    return FlowNode(
        "house", queue="building", data={"rooms": 4}, children=[walls, FlowNode("roof", queue="building")]
    )


async def test_a_flow_is_added_as_a_family(flows: FlowProducer, server_url: str, prefix: str) -> None:
    flow = await flows.add(house())
    assert [job.name for job in flow.walk()] == ["house", "walls", "foundation", "roof"]
    assert await flow.job.get_state() is JobState.WAITING_CHILDREN
    walls, roof = flow.children
    assert await walls.job.get_state() is JobState.WAITING_CHILDREN
    assert await roof.job.get_state() is JobState.WAITING
    assert roof.job.parent == ParentRef(flow.job.id, f"{prefix}:building")
    dependencies = await flow.job.get_dependencies()
    assert set(dependencies.unprocessed) == {
        f"{prefix}:building:{walls.job.id}",
        f"{prefix}:building:{roof.job.id}",
    }


async def test_a_parent_runs_when_its_children_are_done_and_sees_their_values(
    flows: FlowProducer, server_url: str, prefix: str
) -> None:
    order: list[str] = []

    async def handle(job: Job) -> Any:
        order.append(job.name)
        values = await job.get_children_values()
        return {"name": job.name, "from": sorted(value["name"] for value in values.values())}

    flow = await flows.add(house())
    async with (
        Worker("building", handle, redis=server_url, prefix=prefix),
        Worker("digging", handle, redis=server_url, prefix=prefix),
    ):
        assert await flow.job.wait_until_finished(20) == {"name": "house", "from": ["roof", "walls"]}
    assert order.index("foundation") < order.index("walls") < order.index("house")


async def test_a_child_that_fails_fails_its_parent_if_it_is_told_to(
    flows: FlowProducer, server_url: str, prefix: str
) -> None:
    async def handle(job: Job) -> None:
        raise PermanentError("no bricks")

    child = FlowNode("walls", queue="building", options=JobOptions(fail_parent_on_failure=True))
    flow = await flows.add(FlowNode("house", queue="building", children=[child]))
    async with Worker("building", handle, redis=server_url, prefix=prefix):
        with pytest.raises(JobFailed):
            await flow.job.wait_until_finished(20)


async def test_a_found_flow_is_the_one_that_was_added(flows: FlowProducer, server_url: str) -> None:
    added = await flows.add(house())
    async with Hand(server_url, added.children[1].job._desk.keys) as hand:
        await hand.complete(await hand.take(), "done")
    found = await flows.get_flow(added.job.id, "building")
    assert found is not None
    assert {job.id for job in found.walk()} == {job.id for job in added.walk()}
    shallow = await flows.get_flow(added.job.id, "building", depth=1)
    assert shallow is not None
    assert shallow.children == []
    assert await flows.get_flow("nobody", "building") is None


async def test_everything_is_checked_before_anything_is_sent(flows: FlowProducer, server: Server) -> None:
    broken = FlowNode("child", queue="b", data=object())
    with pytest.raises(InvalidOption):
        await flows.add(FlowNode("parent", queue="a", children=[broken]))
    with pytest.raises(InvalidOption):
        FlowNode("parent", queue="a", children=["child"])  # type: ignore[list-item]
    with server.client() as client:
        assert client.keys("*") == []


async def test_a_flow_can_join_a_parent_that_exists(
    flows: FlowProducer, server_url: str, prefix: str
) -> None:
    flow = await flows.add(FlowNode("parent", queue="a", children=[FlowNode("first", queue="a")]))
    reference = ParentRef(flow.job.id, f"{prefix}:a")
    await flows.add(FlowNode("second", queue="a", options=JobOptions(parent=reference)))
    assert len((await flow.job.get_dependencies()).unprocessed) == 2


async def test_many_flows_are_added_together_and_at_the_same_time(
    flows: FlowProducer, prefix: str, server_url: str
) -> None:
    together = await flows.add_bulk([house() for _ in range(5)])
    apart = await asyncio.gather(*(flows.add(house()) for _ in range(5)))
    assert len({job.id for flow in (*together, *apart) for job in flow.walk()}) == 40
    assert await flows.add_bulk([]) == []
    async with Queue("building", redis=server_url, prefix=prefix) as queue:
        counts = await queue.get_job_counts()
    assert (counts.waiting, counts.waiting_children) == (10, 20)


async def test_a_family_that_is_nested_without_end_is_refused(flows: FlowProducer) -> None:
    node = FlowNode("leaf", queue="a")
    for _ in range(300):
        node = FlowNode("parent", queue="a", children=[node])
    with pytest.raises(InvalidOption, match="deeper"):
        await flows.add(node)


async def test_flows_on_a_cluster_need_one_hash_tag(cluster: ValkeyCluster, prefix: str) -> None:
    async with FlowProducer(redis=cluster.url, prefix=prefix) as apart:
        with pytest.raises(CrossSlot, match="shared hash tag"):
            await apart.add(house())
        alone = FlowNode("parent", queue="a", children=[FlowNode("child", queue="a")])
        elsewhere = FlowNode("parent", queue="b", children=[FlowNode("child", queue="b")])
        added = await apart.add_bulk([alone, elsewhere])
        found = await apart.get_flow(added[0].job.id, "a")
        assert found is not None
        assert [job.name for job in found.walk()] == ["parent", "child"]
    async with FlowProducer(redis=cluster.url, prefix=f"{{{prefix}}}") as together:
        flow = await together.add(house())
        found = await together.get_flow(flow.job.id, "building")
        assert found is not None
        assert len(list(found.walk())) == 4


async def test_a_closed_producer_adds_nothing(server_url: str, prefix: str) -> None:
    async with FlowProducer(redis=server_url, prefix=prefix) as flows:
        pass
    with pytest.raises(Closed):
        await flows.add(house())
