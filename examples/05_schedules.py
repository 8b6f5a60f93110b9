"""A job that is added again and again: at an interval, or by a cron pattern in a time zone."""

from __future__ import annotations

import asyncio

from toril import Job, Queue, Worker


async def main() -> None:
    finished = asyncio.Event()
    runs: list[str] = []

    async def count(job: Job) -> None:
        runs.append(job.name)
        if len(runs) == 3:
            finished.set()

    async with Queue("reports") as queue:
        await queue.schedulers.upsert("nightly", cron="0 3 * * *", tz="Europe/Zurich", name="nightly report")
        await queue.schedulers.upsert("often", every=0.1, limit=3, name="count")
        for scheduler in await queue.schedulers.list():
            print(scheduler.id, scheduler.cron or f"every {scheduler.every} s")
        async with Worker("reports", count):
            await finished.wait()
        print(runs)
        print(await queue.schedulers.remove("nightly"))


asyncio.run(main())

# prints:
# often every 0.1 s
# nightly 0 3 * * *
# ['count', 'count', 'count']
# True
