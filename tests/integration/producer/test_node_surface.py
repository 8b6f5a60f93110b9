"""What Node's queues, jobs and flows offer besides adding and processing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from toril import FlowNode, FlowProducer, InvalidOption, Job, JobOptions, Queue, QueueEvents, Worker, sync
from toril.commands.command import plain
from toril.protocol.event import Event
from toril.protocol.options import Deduplication
from toril.protocol.worker_options import RateLimit
from toril.transport import AsyncTransport


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("reports", redis=valkey_url, prefix=prefix) as opened:
        yield opened


async def test_children_are_counted_and_read_in_pages(queue: Queue, valkey_url: str, prefix: str) -> None:
    children = [FlowNode(f"child{i}", queue="children") for i in range(30)]

    async def handle(job: Job[Any]) -> str:
        return job.name

    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        flow = await flows.add(FlowNode("parent", queue="reports", children=children))
        parent = flow.job
        counts = await parent.get_dependency_counts()
        assert (counts.unprocessed, counts.processed, counts.ignored, counts.failed) == (30, 0, 0, 0)
        async with Worker("children", handle, redis=valkey_url, prefix=prefix) as worker:
            await worker.run_until_idle()
        counts = await parent.get_dependency_counts()
        assert (counts.unprocessed, counts.processed) == (0, 30)
        found: dict[str, Any] = {}
        cursor = "0"
        while True:
            page = await parent.get_dependencies_page("processed", cursor, count=7)
            found |= page.children
            cursor = page.cursor
            if cursor == "0":
                break
        assert sorted(found.values()) == sorted(f"child{i}" for i in range(30))
        with pytest.raises(InvalidOption, match="kind"):
            await parent.get_dependencies_page("all")  # type: ignore[arg-type]


async def test_the_jobs_of_a_flow_follow_the_defaults_of_their_queue(valkey_url: str, prefix: str) -> None:
    flows = FlowProducer(
        redis=valkey_url,
        prefix=prefix,
        defaults=JobOptions(attempts=2),
        queue_defaults={"b": JobOptions(attempts=7, lifo=True)},
    )
    async with flows:
        added = await flows.add(FlowNode("p", queue="a", children=[FlowNode("c", queue="b")]))
        (child,) = added.children
        assert (added.job.max_attempts, child.job.max_attempts, child.job.options.lifo) == (2, 7, True)


async def test_jobs_that_are_in_no_list_are_removed_within_a_limit(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    lost = [await queue.add("n", {"i": i}) for i in range(5)]
    async with AsyncTransport(valkey_url) as transport:
        await lost[0].log("a line")
        await transport.run(plain(int, "DEL", queue.keys.wait))
        kept = await queue.add("n")
        assert len(await queue.remove_orphaned_jobs(limit=2)) == 2
        removed = await queue.remove_orphaned_jobs()
        assert len(removed) == 3
        assert await transport.run(plain(int, "EXISTS", queue.keys.logs(lost[0].id))) == 0
    assert await queue.remove_orphaned_jobs() == []
    assert await queue.get_job(kept.id) is not None
    assert await queue.get_job(lost[0].id) is None


async def test_counts_ranges_and_meta_are_read(queue: Queue) -> None:
    added = [await queue.add("n"), await queue.add("n", priority=3), await queue.add("n", delay=60)]
    assert await queue.get_job_count_by_types("waiting", "prioritized") == 2
    assert await queue.get_job_count_by_types() == 3
    assert await queue.get_ranges(["waiting", "delayed"]) == [added[0].id, added[2].id]
    await queue.set_global_concurrency(5)
    await queue.set_global_rate_limit(RateLimit(10, 2))
    meta = await queue.get_meta()
    assert (meta.concurrency, meta.rate_limit, meta.paused) == (5, RateLimit(10, 2), False)
    assert (meta.version, meta.max_len_events) == ("bullmq:5.62.0", 10_000)
    await queue.pause()
    assert (await queue.get_meta()).paused


async def test_an_event_of_the_application_reaches_its_listeners(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async with QueueEvents("reports", redis=valkey_url, prefix=prefix, last_id="0-0") as events:
        event_id = await queue.publish_event("shipped", {"order": 7, "by": "post"})
        async for event in events:
            if isinstance(event, Event) and event.type == "shipped":
                break
        assert isinstance(event, Event)
        assert event.id == event_id
        assert {**event.fields}.items() >= {"order": "7", "by": "post"}.items()
    for name, fields in (("completed", {}), ("", {}), ("mine", {"event": "x"})):
        with pytest.raises(InvalidOption):
            await queue.publish_event(name, fields)


async def test_a_job_shows_its_deduplication_id_its_scheduler_and_its_json(queue: Queue) -> None:
    job = await queue.add("n", {"x": 1}, deduplication=Deduplication.simple("same"))
    run = await queue.schedulers.upsert("tick", every=60)
    assert (job.deduplication_id, job.repeat_job_key, run.repeat_job_key) == ("same", None, "tick")
    shown = job.as_json()
    assert (shown["id"], shown["name"], shown["data"]) == (job.id, "n", {"x": 1})
    assert shown["timestamp"] == round(job.timestamp.timestamp() * 1000)


def test_the_blocking_queue_has_the_same(valkey_url: str, prefix: str) -> None:
    with sync.Queue("reports", redis=valkey_url, prefix=prefix) as queue:
        job = queue.add("n")
        assert queue.publish_event("shipped")
        assert queue.get_ranges("waiting") == [job.id]
        assert queue.get_job_count_by_types("waiting") == 1
        assert queue.get_meta().version == "bullmq:5.62.0"
        assert queue.remove_orphaned_jobs() == []
        assert job.get_dependency_counts().unprocessed == 0
        assert job.get_dependencies_page("unprocessed").cursor == "0"
