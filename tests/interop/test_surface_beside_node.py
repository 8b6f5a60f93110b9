"""Readers and small operations beside those of Node 5.62.0 and 6.7.0, on one server: both give the same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.interop.reference import FIVE, SIX, Bench, Reference
from tests.servers import Server
from tests.waiting import until, until_equal
from toril import (
    Deduplication,
    FlowNode,
    FlowProducer,
    Job,
    JobOptions,
    KeepJobs,
    ParentRef,
    Queue,
    QueueEvents,
    RateLimit,
    Worker,
)
from toril.commands.command import plain
from toril.protocol.event import Event
from toril.protocol.state import JobState
from toril.transport import AsyncTransport

QUEUE = "surface"


class Sides(NamedTuple):
    node: Bench
    url: str
    version: str


@pytest.fixture(scope="module", params=[FIVE, SIX])
def reference(request: pytest.FixtureRequest) -> Iterator[tuple[Reference, Server, str]]:
    with Server.valkey() as server, Reference(request.param) as found:
        yield found, server, request.param


@pytest.fixture
def sides(reference: tuple[Reference, Server, str]) -> Iterator[Sides]:
    node, server, version = reference
    with server.client() as client:
        client.flushall()
    bench = node.bench(QUEUE, url=server.url)
    bench.call("reset")
    yield Sides(bench, server.url, version)
    bench.close()


async def parent_with_children(url: str) -> str:
    """A parent with children that completed, failed, were ignored, and wait."""
    ignored = JobOptions(attempts=1, ignore_dependency_on_failure=True)
    kinds = {"good": JobOptions(), "bad": JobOptions(attempts=1), "ignored": ignored}
    children = [
        FlowNode(name, queue="children", options=options) for name, options in kinds.items() for _ in range(3)
    ]
    later = [FlowNode("later", queue="children", options=JobOptions(delay=3600)) for _ in range(5)]

    async def handle(job: Job[Any]) -> str:
        if job.name != "good":
            raise ValueError("no")
        return job.name

    async with FlowProducer(redis=url) as flows:
        flow = await flows.add(FlowNode("parent", queue=QUEUE, children=[*children, *later]))
    async with Worker("children", handle, redis=url) as worker:
        await worker.run_until_idle()
    return flow.job.id


async def test_children_are_counted_and_read_in_pages_as_by_node(sides: Sides) -> None:
    parent_id = await parent_with_children(sides.url)
    async with Queue(QUEUE, redis=sides.url) as queue:
        parent = await queue.get_job(parent_id)
        assert parent is not None
        counts = await parent.get_dependency_counts()
        assert counts.processed == 3
        assert counts.unprocessed >= 5
        told = sides.node.call("dependency_counts", id=parent_id)
        assert told == {
            "processed": counts.processed,
            "unprocessed": counts.unprocessed,
            "ignored": counts.ignored,
            "failed": counts.failed,
        }
        for kind in ("processed", "unprocessed"):
            page = await parent.get_dependencies_page(kind, "0", count=100)
            theirs = sides.node.call(
                "dependencies_page", id=parent_id, opts={kind: {"cursor": 0, "count": 100}}
            )
            found = theirs[kind]
            assert sorted(found) == sorted(page.children)
            if kind == "processed":
                assert found == page.children


async def test_counts_and_ranges_are_those_of_node(sides: Sides) -> None:
    async with Queue(QUEUE, redis=sides.url) as queue:
        await queue.add_bulk([("n", {}), ("n", {}, {"priority": 2}), ("n", {}, {"delay": 60}), ("n", {})])
        for types in (["waiting"], ["waiting", "prioritized"], ["delayed", "waiting", "completed"]):
            assert await queue.get_job_count_by_types(*types) == sides.node.call(
                "count_by_types", types=types
            )
        for ascending in (False, True):
            for start, end in ((0, -1), (1, 1)):
                ours = await queue.get_ranges(["waiting", "delayed"], start, end, ascending=ascending)
                named = {"types": ["wait", "delayed"], "start": start, "end": end, "asc": ascending}
                assert ours == sides.node.call("ranges", **named)


async def test_a_job_is_shown_as_node_shows_it(sides: Sides) -> None:
    async with Queue(QUEUE, redis=sides.url) as queue:
        parent = await queue.add("parent", {})
        parent_ref = ParentRef(parent.id, queue.keys.qualified)
        job = await queue.add(
            "n", {"x": [1]}, deduplication=Deduplication.simple("same"), parent=parent_ref, delay=60
        )
        run = await queue.schedulers.upsert("tick", every=60)
        for one in (job, run):
            found = await queue.get_job(one.id)
            assert found is not None
            shown = found.as_json()
            theirs = sides.node.call("as_json", id=one.id)
            assert json.loads(theirs["data"]) == shown["data"]
            names = (
                "id",
                "name",
                "timestamp",
                "attemptsMade",
                "repeatJobKey",
                "deduplicationId",
                "parentKey",
            )
            assert {name: theirs.get(name) for name in names} == {name: shown.get(name) for name in names}
        assert job.deduplication_id == sides.node.call("as_json", id=job.id)["deduplicationId"] == "same"
        assert run.repeat_job_key == sides.node.call("as_json", id=run.id)["repeatJobKey"] == "tick"


async def test_events_of_applications_cross_in_both_directions(sides: Sides) -> None:
    async with (
        Queue(QUEUE, redis=sides.url) as queue,
        QueueEvents(QUEUE, redis=sides.url, last_id="0-0") as events,
    ):
        sides.node.call("publish_event", fields={"eventName": "shipped", "by": "node"})
        await queue.publish_event("shipped", {"by": "toril"})
        found: list[str] = []
        async for event in events:
            if isinstance(event, Event) and event.type == "shipped":
                found.append(event.fields["by"])
                if len(found) == 2:
                    break
    assert found == ["node", "toril"]


async def test_a_worker_reports_the_same_events(sides: Sides) -> None:
    async with Queue(QUEUE, redis=sides.url) as queue:
        await queue.add("n")
        theirs = await sides.node.ask("worker_events")
        seen: list[str] = []

        async def handle(job: Job[Any]) -> int:
            await job.update_progress(40)
            return 1

        worker = Worker(QUEUE, handle, redis=sides.url)
        names: tuple[Any, ...] = ("ready", "active", "progress", "completed", "closing", "closed")
        for name in names:
            worker.on(name, lambda *_, name=name: seen.append(name))
        await queue.add("n")
        async with worker:
            await until(lambda: "completed" in seen, "the job completed")
        await until(lambda: "closed" in seen, "the worker closed")
    assert [name for name in theirs if name != "ready"] == [name for name in seen if name != "ready"]


async def test_settings_and_orphaned_jobs_are_those_of_node_6(sides: Sides) -> None:
    """Node 5.62.0 has neither; jobs without a state are removed by both."""
    async with Queue(QUEUE, redis=sides.url) as queue, AsyncTransport(sides.url) as transport:
        await queue.set_global_concurrency(5)
        await queue.set_global_rate_limit(RateLimit(10, 2))
        meta = await queue.get_meta()
        if sides.version == SIX:
            theirs = sides.node.call("meta")
            ours = (meta.concurrency, 10, 2000, meta.max_len_events)
            assert ours == tuple(theirs[name] for name in ("concurrency", "max", "duration", "maxLenEvents"))
        kept = await queue.add("n", remove_on_complete=KeepJobs(count=1))
        for _ in range(2):
            orphan = await queue.add("n")
            await transport.run(plain(int, "LREM", queue.keys.wait, 0, orphan.id))
            if sides.version == SIX:
                assert sides.node.call("remove_orphaned_jobs") == 1
            else:
                assert await queue.remove_orphaned_jobs() == [orphan.id]
        assert await queue.remove_orphaned_jobs() == []
        assert await queue.get_job(kept.id) is not None


async def test_the_next_run_of_an_interval_with_an_offset_is_that_of_node_6(sides: Sides) -> None:
    """Node 5.62.0 reads an offset that is stored, and does not let applications set one."""
    async with Queue(QUEUE, redis=sides.url) as queue:
        ours = await queue.schedulers.upsert("ours", every=3600, offset=600)
        repeat = {"every": 3_600_000, "offset": 600_000}
        sides.node.call("upsert_scheduler", id="theirs", repeat=repeat, template={"name": "n"})
        found = {one["key"]: one for one in sides.node.call("schedulers")}
        assert found["ours"]["offset"] == 600_000
        assert (found["ours"]["next"] == found["theirs"]["next"]) is (sides.version == SIX)
        assert ours.repeat_job_key == "ours"


async def test_a_worker_of_node_takes_results_and_keeps_checkpoints(sides: Sides) -> None:
    """The jobs that results become are ordinary ones, and what Node retries keeps its checkpoint."""
    found: list[Any] = []

    async def handle(job: Job[Any]) -> dict[str, int]:
        found.append(job.checkpoint)
        await job.save_checkpoint(len(found))
        if len(found) == 1:
            raise ValueError("no")
        return {"result": 5}

    async with Queue("source", redis=sides.url) as source:
        job = await source.add("n", {}, attempts=1)
        node_source = sides.node.reference.bench("source", url=sides.url)
        async with Worker("source", handle, redis=sides.url, results_to=QUEUE):
            await until_equal(lambda: source.get_job_state(job.id), JobState.FAILED)
            await node_source.ask("retry", id=job.id, state="failed")
            await until_equal(lambda: source.get_job_state(job.id), JobState.COMPLETED)
            await node_source.ask("retry", id=job.id, state="completed")
            await until(lambda: len(found) == 3, "the job ran again")
            await until_equal(lambda: source.get_job_state(job.id), JobState.COMPLETED)
        node_source.close()
    assert found == [None, 1, None]
    stream = await sides.node.start_worker("w")
    runs = await stream.until(lambda notices: sum(one.what == "completed" for one in notices) == 2)
    await sides.node.stop("w")
    assert [one.fields["value"] for one in runs if one.what == "completed"] == [5, 5]
