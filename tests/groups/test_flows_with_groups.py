"""Jobs of flows can have groups: parents and children are served in turns, within the limits of their groups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.conftest import QUEUE
from tests.groups.orders import started
from toril import FlowNode, FlowProducer, GroupLimits, Job, JobOptions, Queue, Worker
from toril.errors import GroupFull
from toril.protocol.state import JobState


def node(job_id: str, group: str, *children: FlowNode, **options: Any) -> FlowNode:
    chosen = JobOptions(group=group, job_id=job_id, **options)
    return FlowNode("n", queue=QUEUE, options=chosen, children=children)


async def work(_: Job[Any]) -> None:
    """Nothing to do."""


async def test_children_of_flows_are_served_in_turns_and_parents_follow_them(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    large = node("parent-a", "a", *(node(f"a-{n}", "a") for n in range(20)))
    small = node("parent-b", "b", *(node(f"b-{n}", "b") for n in range(3)))
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        await flows.add(large)
        await flows.add(small)
    async with Worker(QUEUE, work, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    order = await started(queue, valkey_url)
    assert len(order) == 25
    assert order.index("b-2") < 8  # in turns with the 20 of the other flow
    assert order.index("parent-b") < order.index("a-19")  # it stands where its flow was added
    assert order.index("parent-a") == 24
    parent = await queue.get_job("parent-a")
    assert parent is not None
    assert (parent.group, await parent.get_state()) == ("a", JobState.COMPLETED)


async def test_limits_hold_for_children_and_parents(queue: Queue, valkey_url: str, prefix: str) -> None:
    running, most = 0, 0

    async def handle(_: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await queue.get_job_counts()
        running -= 1

    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        trees = [node(f"p{t}", "a", *(node(f"c{t}-{n}", "a") for n in range(5))) for t in range(4)]
        await flows.add_bulk(trees)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=10) as worker:
        await worker.run_until_idle()
    assert most == 1
    assert (await queue.get_job_counts()).completed == 24


async def test_a_flow_that_does_not_fit_into_a_group_is_refused_whole(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.set_group_limits("a", GroupLimits(max_size=3))
    await queue.add("n", {}, group="a")
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        with pytest.raises(GroupFull):
            await flows.add(node("parent", "b", *(node(f"c-{n}", "a") for n in range(3))))
        assert await queue.get_job("parent") is None
        assert (await queue.get_job_counts()).prioritized == 1
        await flows.add(node("parent", "a", *(node(f"c-{n}", "a") for n in range(2))))
        with pytest.raises(GroupFull):
            await queue.add("n", {}, group="a")
    async with Worker(QUEUE, work, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert (await queue.get_job_counts()).completed == 4
    await queue.add("n", {}, group="a")  # there is room again


async def test_a_delayed_child_of_a_group_waits_for_its_time(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        await flows.add(node("parent", "a", node("child", "a", delay=3600)))
    counts = await queue.get_job_counts()
    assert (counts.delayed, counts.waiting_children) == (1, 1)
    child = await queue.get_job("child")
    assert child is not None
    await child.promote()
    async with Worker(QUEUE, work, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert (await queue.get_job_counts()).completed == 2
