"""Families of jobs: added in one step, run from the leaves to the root."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server, ValkeyCluster
from toril import FlowNode, FlowProducer, Job, JobOptions, Queue, Worker
from toril.errors import (
    ChildrenDeduplicated,
    Closed,
    CrossSlot,
    InvalidOption,
    JobFailed,
    ParentCannotBeReplaced,
    ParentDeduplicated,
    ParentNotFound,
    PermanentError,
    RedisOutOfMemory,
    ScriptFailed,
    ScriptRefused,
)
from toril.protocol.options import Deduplication, ParentRef
from toril.protocol.state import JobState


@pytest.fixture
async def flows(server_url: str, prefix: str) -> AsyncIterator[FlowProducer]:
    async with FlowProducer(redis=server_url, prefix=prefix) as producer:
        yield producer


def building_flow() -> FlowNode:
    walls = FlowNode(
        "walls", queue="building", data={"bricks": 900}, children=[FlowNode("foundation", queue="digging")]
    )
    return FlowNode(
        "house", queue="building", data={"rooms": 4}, children=[walls, FlowNode("roof", queue="building")]
    )


async def test_a_flow_is_added_as_a_family(flows: FlowProducer, server_url: str, prefix: str) -> None:
    flow = await flows.add(building_flow())
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

    flow = await flows.add(building_flow())
    async with (
        Worker("building", handle, redis=server_url, prefix=prefix),
        Worker("digging", handle, redis=server_url, prefix=prefix),
    ):
        assert await flow.job.wait_until_finished(20) == {"name": "house", "from": ["roof", "walls"]}
    assert order.index("foundation") < order.index("walls") < order.index("house")


async def test_a_child_that_fails_fails_its_parent_if_the_option_is_set(
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
    added = await flows.add(building_flow())
    async with ManualWorker(server_url, added.children[1].job._calls.keys) as manual_worker:
        await manual_worker.complete(await manual_worker.take(), "done")
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
    together = await flows.add_bulk([building_flow() for _ in range(5)])
    apart = await asyncio.gather(*(flows.add(building_flow()) for _ in range(5)))
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
            await apart.add(building_flow())
        alone = FlowNode("parent", queue="a", children=[FlowNode("child", queue="a")])
        elsewhere = FlowNode("parent", queue="b", children=[FlowNode("child", queue="b")])
        added = await apart.add_bulk([alone, elsewhere])
        found = await apart.get_flow(added[0].job.id, "a")
        assert found is not None
        assert [job.name for job in found.walk()] == ["parent", "child"]
    async with FlowProducer(redis=cluster.url, prefix=f"{{{prefix}}}") as together:
        flow = await together.add(building_flow())
        found = await together.get_flow(flow.job.id, "building")
        assert found is not None
        assert len(list(found.walk())) == 4


async def test_a_closed_producer_adds_nothing(server_url: str, prefix: str) -> None:
    async with FlowProducer(redis=server_url, prefix=prefix) as flows:
        pass
    with pytest.raises(Closed):
        await flows.add(building_flow())


# --- whole or not at all ------------------------------------------------------------------------------------------


def node(name: str, *children: FlowNode, queue: str = "a", **options: Any) -> FlowNode:
    return FlowNode(
        name, queue=queue, data={"by": name}, options=JobOptions(job_id=name, **options), children=children
    )


def jobs_of(server: Server, prefix: str) -> set[str]:
    """The keys of all jobs, and of what belongs to them."""
    queue_keys = ("meta", "id", "events", "marker", "wait", "waiting-children", "delayed", "de", "toril")
    with server.client() as client:
        names = {key.decode().removeprefix(f"{prefix}:") for key in client.keys(f"{prefix}:*")}
    return {name for name in names if name.split(":")[1] not in queue_keys}


ONCE = Deduplication("once")


def owned_by_another() -> FlowNode:
    return node("new", node("mine"), node("deep", node("theirs"), queue="b"))


def deduplicated_parent() -> FlowNode:
    return node("new", node("mine"), node("deep", node("leaf"), deduplication=ONCE))


def deduplicated_children() -> FlowNode:
    return node("new", node("mine"), node("deep", node("leaf", deduplication=ONCE)))


def child_of_the_dead() -> FlowNode:
    return node("new", node("mine"), node("deep", node("orphan")))


def joins_nobody(prefix: str) -> FlowNode:
    return node("new", node("mine"), parent=ParentRef("nobody", f"{prefix}:a"))


def same_child_twice() -> FlowNode:
    return node("new", node("left", node("mine")), node("right", node("mine")))


async def what_others_have(flows: FlowProducer, server: Server, prefix: str) -> None:
    await flows.add(node("others", node("theirs")))
    await flows.add(node("stands", deduplication=ONCE))
    await flows.add(node("gone", node("orphan")))
    with server.client() as client:
        client.delete(f"{prefix}:a:gone")  # as Node's `removeOnComplete` of a parent leaves it
        assert client.hget(f"{prefix}:a:orphan", "parentKey") == f"{prefix}:a:gone".encode()


REFUSED: list[tuple[Any, type[ScriptRefused], str]] = [
    (owned_by_another, ParentCannotBeReplaced, "job theirs: the job exists already and has another parent"),
    (
        deduplicated_parent,
        ParentDeduplicated,
        "job deep: has children and was deduplicated: job stands exists",
    ),
    (deduplicated_children, ChildrenDeduplicated, "job deep: has no child to wait for"),
    (child_of_the_dead, ChildrenDeduplicated, "job deep: has no child to wait for"),
    (joins_nobody, ParentNotFound, "job new: the parent job does not exist"),
    (same_child_twice, ParentCannotBeReplaced, "job mine: the job exists already and has another parent"),
]


@pytest.mark.parametrize(("make", "error", "text"), REFUSED)
async def test_a_flow_that_is_refused_leaves_nothing(
    flows: FlowProducer, server: Server, prefix: str, make: Any, error: type[ScriptRefused], text: str
) -> None:
    await what_others_have(flows, server, prefix)
    before = jobs_of(server, prefix)
    flow = make(prefix) if make is joins_nobody else make()
    with pytest.raises(error, match=text):
        await flows.add(flow)
    assert jobs_of(server, prefix) == before
    with server.client() as client:
        assert client.lrange(f"{prefix}:a:wait", 0, -1) == [b"orphan", b"stands", b"theirs"]


async def test_a_refused_flow_leaves_the_others_of_a_bulk_whole(
    flows: FlowProducer, server: Server, prefix: str
) -> None:
    await what_others_have(flows, server, prefix)
    before = jobs_of(server, prefix)
    good = [node(f"good-{n}", node(f"leaf-{n}")) for n in range(3)]
    bad = [owned_by_another(), deduplicated_parent()]
    with pytest.raises(ParentCannotBeReplaced) as refused:
        await flows.add_bulk([good[0], bad[0], good[1], bad[1], good[2]])
    assert refused.value.__notes__ == ["2 of 5 flows were not added"]
    new = {f"a:{kind}-{n}" for kind in ("good", "leaf") for n in range(3)}
    assert jobs_of(server, prefix) - before == new | {f"a:good-{n}:dependencies" for n in range(3)}


async def test_flows_of_a_bulk_see_each_other_in_order(
    flows: FlowProducer, server: Server, prefix: str
) -> None:
    first = node("first", node("leaf"), deduplication=ONCE)
    second = node("second", node("other"), deduplication=ONCE)
    with pytest.raises(ParentDeduplicated, match="job first exists"):
        await flows.add_bulk([first, second])
    assert jobs_of(server, prefix) == {"a:first", "a:first:dependencies", "a:leaf"}


async def test_a_bulk_of_many_flows_is_sent_in_bounded_calls(
    flows: FlowProducer, server: Server, prefix: str
) -> None:
    with server.client() as client:
        before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        added = await flows.add_bulk([node(f"p{n}", node(f"c{n}"), node(f"d{n}")) for n in range(400)])
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert [one.job.id for one in added] == [f"p{n}" for n in range(400)]
    assert calls >= 3
    assert len(jobs_of(server, prefix)) == 4 * 400


async def test_a_flow_that_exists_is_returned_as_it_is_stored(flows: FlowProducer) -> None:
    first = await flows.add(node("parent", node("left"), node("right")))
    assert all(job.added for job in first.walk())
    other = FlowNode("parent", queue="a", data={"by": "another"}, options=JobOptions(job_id="parent"))
    again = await flows.add(
        FlowNode("p", queue="a", options=other.options, children=[node("left"), node("new")])
    )
    assert [(job.id, job.added) for job in again.walk()] == [
        ("parent", False),
        ("left", False),
        ("new", True),
    ]
    assert again.job.data == {"by": "parent"}
    assert len((await first.job.get_dependencies()).unprocessed) == 3


async def test_a_deduplicated_child_is_the_job_that_stands_for_it(flows: FlowProducer) -> None:
    await flows.add(node("stands", deduplication=ONCE))
    flow = await flows.add(node("parent", node("left"), node("right", deduplication=ONCE)))
    assert [(job.id, job.added) for job in flow.walk()] == [
        ("parent", True),
        ("left", True),
        ("stands", False),
    ]
    assert flow.children[1].job.data == {"by": "stands"}


@pytest.mark.parametrize("key", ["wait", "delayed", "events", "marker"])
async def test_a_queue_with_a_damaged_key_takes_no_part_of_a_flow(
    flows: FlowProducer, server: Server, prefix: str, key: str
) -> None:
    with server.client() as client:
        client.hset(f"{prefix}:b:{key}", "not", "what it should be")
        with pytest.raises(ScriptFailed, match=f"WRONGTYPE {prefix}:b:{key} is a hash"):
            await flows.add(node("parent", node("left"), node("right", queue="b", delay=60)))
        assert [name for name in client.keys(f"{prefix}:a:*") if b":toril:" not in name] == []
        client.delete(f"{prefix}:b:{key}")


async def test_a_full_server_takes_no_part_of_a_flow(start_valkey: Any, prefix: str) -> None:
    server = start_valkey()
    async with FlowProducer(redis=server.url, prefix=prefix) as flows:
        with server.client() as client:
            client.config_set("maxmemory", "1")
            with pytest.raises(RedisOutOfMemory, match="raise maxmemory"):
                await flows.add(building_flow())
            client.config_set("maxmemory", "0")
            assert client.keys("*") == []
        assert len(list((await flows.add(building_flow())).walk())) == 4


async def test_a_job_cannot_be_its_own_ancestor(flows: FlowProducer, server: Server) -> None:
    with pytest.raises(InvalidOption, match="'same' is the id of an ancestor"):
        await flows.add(node("same", node("between", node("same"))))
    await flows.add(node("same", node("same", queue="b")))  # another queue's job of that id is another job
    with server.client() as client:
        assert client.exists(*client.keys("*:a:same")) == 1


async def test_a_refused_flow_leaves_nothing_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    async with FlowProducer(redis=cluster.url, prefix=f"{{{prefix}}}") as flows:
        await flows.add(node("others", node("theirs")))
        with pytest.raises(ParentCannotBeReplaced):
            await flows.add(owned_by_another())
        assert await flows.get_flow("new", "a") is None
        assert await flows.get_flow("mine", "a") is None
