"""The progress and the end of jobs, as web clients follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest

from tests.servers import Server
from toril import App, Context, InvalidOption
from toril.errors import JobNotFound
from toril.integrations.job_updates import JobUpdate, JobUpdates


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


async def followed(updates: JobUpdates, job_id: str) -> list[JobUpdate]:
    async with aclosing(updates.follow("default", job_id)) as stream:
        return [update async for update in stream]


async def test_progress_and_result_arrive_in_order(app: App) -> None:
    step = asyncio.Event()

    @app.task
    async def count(ctx: Context) -> str:
        for number in (1, 2, 3):
            await step.wait()
            step.clear()
            await ctx.progress(number)
        await step.wait()
        return "done"

    async with (
        app.worker(),
        aclosing(JobUpdates(app).follow("default", (await count.enqueue()).id)) as stream,
    ):
        found = []
        following = asyncio.ensure_future(anext(stream))
        for _ in range(4):
            step.set()
            found.append(await following)
            following = asyncio.ensure_future(anext(stream))
        with pytest.raises(StopAsyncIteration):
            await following
    assert found == [*(JobUpdate("progress", n) for n in (1, 2, 3)), JobUpdate("completed", "done")]


async def test_the_end_of_a_job_that_has_ended_arrives_at_once(app: App) -> None:
    @app.task
    async def good(ctx: Context) -> int:
        await ctx.progress({"page": 7})
        return 5

    @app.task
    async def bad() -> None:
        raise ValueError("no")

    ids = [(await good.enqueue()).id, (await bad.enqueue()).id]
    async with app.worker() as worker:
        await worker.run_until_idle()
    updates = JobUpdates(app)
    assert await followed(updates, ids[0]) == [
        JobUpdate("progress", {"page": 7}),
        JobUpdate("completed", 5),
    ]
    assert await followed(updates, ids[1]) == [JobUpdate("failed", "no")]


async def test_a_job_that_is_removed_ends_the_stream(app: App, valkey: Server) -> None:
    @app.task
    async def never() -> None: ...

    job = await never.enqueue()
    following = asyncio.create_task(followed(JobUpdates(app), job.id))
    await events_are_read(valkey)
    await job.remove()
    assert await following == [JobUpdate("removed")]


async def events_are_read(valkey: Server) -> None:
    """Returns when the reader of progress and the one of ends wait for events."""
    while readers(valkey) < 2:
        await asyncio.sleep(0.01)


def readers(valkey: Server) -> int:
    with valkey.client() as client:
        found = cast("list[dict[str, str]]", client.client_list())
    return sum("xread" in one["cmd"] for one in found)


async def test_the_end_arrives_although_all_events_are_lost(app: App, valkey: Server, prefix: str) -> None:
    @app.task
    async def lose_events() -> str:
        with valkey.client() as client:
            client.delete(f"{prefix}:default:events")
        return "done"

    job = await lose_events.enqueue()
    following = asyncio.create_task(followed(JobUpdates(app), job.id))
    await events_are_read(valkey)
    async with app.worker() as worker:
        await worker.run_until_idle()
        with valkey.client() as client:
            client.delete(f"{prefix}:default:events")
        assert (await following)[-1] == JobUpdate("completed", "done")


async def test_a_slow_client_gets_the_newest_progress(app: App, valkey: Server) -> None:
    first, all_sent = asyncio.Event(), asyncio.Event()

    @app.task
    async def hurry(ctx: Context) -> None:
        await first.wait()
        for number in range(1, 51):
            await ctx.progress(number)
        all_sent.set()

    job = await hurry.enqueue()
    async with app.worker():
        stream = JobUpdates(app).follow("default", job.id)
        async with aclosing(stream):
            following = asyncio.ensure_future(anext(stream))
            await events_are_read(valkey)
            first.set()
            await all_sent.wait()
            found = [await following, *[update async for update in stream]]
    assert found[-1] == JobUpdate("completed")
    assert found[-2] == JobUpdate("progress", 50)
    assert len(found) < 52


async def test_followers_of_a_queue_share_one_reader_which_ends_with_the_last(
    app: App, valkey: Server
) -> None:
    @app.task
    async def never() -> None: ...

    updates = JobUpdates(app)
    jobs = [await never.enqueue() for _ in range(5)]
    following = [asyncio.create_task(followed(updates, job.id)) for job in jobs]
    await events_are_read(valkey)
    assert readers(valkey) == 2
    for task in following:
        task.cancel()
    await asyncio.wait(following)
    assert updates._by_queue == {}


async def test_a_quiet_stream_sends_comments(app: App) -> None:
    @app.task
    async def never() -> None: ...

    job = await never.enqueue()
    async with aclosing(JobUpdates(app).stream("default", job.id, keep_alive=0.05)) as blocks:
        assert [await anext(blocks) for _ in range(2)] == [b": keep-alive\n\n"] * 2
        await job.remove()
        rest = [block async for block in blocks]
    assert rest[-1] == b"event: removed\ndata: null\n\n"


async def test_what_cannot_be_followed_is_refused(app: App) -> None:
    @app.task(queue="list:plain")
    async def plain() -> None: ...

    with pytest.raises(JobNotFound):
        await followed(JobUpdates(app), "unknown")
    with pytest.raises(InvalidOption, match="not a BullMQ queue"):
        await JobUpdates(app).find("list:plain", "x")
