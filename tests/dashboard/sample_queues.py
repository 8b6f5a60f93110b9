"""Queues of three kinds with jobs in every state, for pages in a browser and for images of the documentation."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from toril import (
    FlowNode,
    FlowProducer,
    GroupLimits,
    Job,
    JobOptions,
    ListQueue,
    NewJob,
    PermanentError,
    Queue,
    StreamQueue,
    StreamWorker,
    Worker,
)

ERRORS = (
    "SMTP 550: mailbox of user {} is full",
    "connect ECONNREFUSED 10.0.0.{}:5432",
    "invoice {} has no address",
)


@contextlib.asynccontextmanager
async def sample_queues(
    redis: str, prefix: str = "bull", *, jobs: int = 120, busy: bool = False
) -> AsyncIterator[None]:
    """Fills a server; while the context is open, a worker has some jobs in its hands, and others are run if `busy`."""
    chance = random.Random(4)
    given: dict[str, Any] = {"redis": redis, "prefix": prefix}

    async def handle(job: Job) -> dict[str, int]:
        await job.log(f"sending {job.id}")
        await job.log("waiting for the receipt")
        if chance.random() < 0.15:
            raise PermanentError(chance.choice(ERRORS).format(chance.randint(1, 200)))
        return {"receipt": chance.randint(1, 10**12)}

    async def visit(_: object) -> None:
        if chance.random() < 0.4:
            raise PermanentError(
                f"selector '#price' not found on https://shop.example/{chance.randint(1, 99)}"
            )

    async def render(job: Job) -> None:
        await job.update_progress(chance.randint(5, 90))
        await asyncio.Event().wait()

    async with contextlib.AsyncExitStack() as stack:
        emails, invoices, thumbnails, webhooks, reports = [
            await stack.enter_async_context(Queue(name, **given))
            for name in ("emails", "invoices", "thumbnails", "webhooks", "reports")
        ]
        for queue in (emails, invoices):
            await queue.add_bulk(
                [
                    ("welcome" if n % 3 else "digest", {"to": f"user{n}@example.com", "n": n})
                    for n in range(jobs)
                ]
            )
            async with Worker(queue.name, handle, **given, concurrency=20) as worker:
                await worker.run_until_idle()
        await thumbnails.add_bulk([("resize", {"image": f"s3://media/{n}.jpg"}) for n in range(jobs)])
        await webhooks.add_bulk([("post", {"n": n}) for n in range(12)])
        await webhooks.add("later", {"n": 1}, delay=3600)
        await webhooks.add("urgent", {"n": 2}, priority=1)
        await webhooks.add_bulk(
            [NewJob("post", {"n": n}, JobOptions(group=f"tenant-{n % 3}")) for n in range(30)]
        )
        await webhooks.set_group_limits("tenant-1", GroupLimits(concurrency=2, max_size=500))
        await webhooks.set_group_weight("tenant-2", 4)
        await webhooks.pause()
        await reports.schedulers.upsert(
            "nightly", cron="0 3 * * *", tz="Europe/Zurich", name="report", data={}
        )
        await reports.schedulers.upsert("pulse", every=1800.0, name="pulse", data={})
        await _add_flow(given)
        await _fill_envelopes(given, visit)
        if busy:
            await stack.enter_async_context(_busy_queue(given, chance))
        async with Worker("thumbnails", render, **given, concurrency=4) as worker:
            while (await thumbnails.get_job_counts()).active < 4:
                await asyncio.sleep(0.02)
            yield
            await worker.stop(timeout=0)


@contextlib.asynccontextmanager
async def _busy_queue(given: dict[str, Any], chance: random.Random) -> AsyncIterator[None]:
    """A queue whose jobs are added and run all the time."""

    async def handle(_: Job) -> None:
        if chance.random() < 0.06:
            raise PermanentError(ERRORS[1].format(chance.randint(1, 200)))

    async with Queue("payments", **given) as queue, Worker("payments", handle, **given):

        async def add() -> None:
            while True:
                await queue.add_bulk([("charge", {"cents": 100 * n}) for n in range(chance.randint(2, 30))])
                await asyncio.sleep(0.1)  # the pace of the sample

        adding = asyncio.create_task(add())
        try:
            yield
        finally:
            adding.cancel()
            await asyncio.wait([adding])


async def _add_flow(given: dict[str, Any]) -> None:
    async with FlowProducer(**given) as flows:
        pages = [
            FlowNode(
                "render", queue="thumbnails", data={"page": n}, children=[FlowNode("fetch", queue="emails")]
            )
            for n in range(3)
        ]
        await flows.add(FlowNode("monthly", queue="reports", data={"month": "2026-10"}, children=pages))


async def _fill_envelopes(given: dict[str, Any], visit: Any) -> None:
    async with StreamQueue("jobs.browser", **given) as stream, ListQueue("jobs.generic", **given) as generic:
        for n in range(20):
            await stream.add("navigate_extract", {"url": f"https://shop.example/{n}"})
        async with StreamWorker("jobs.browser", visit, **given, concurrency=5) as worker:
            await worker.run_until_idle()
        for n in range(5):
            await stream.add("navigate_extract", {"url": f"https://shop.example/{n}"})
            await generic.add("thumb", {"n": n})
