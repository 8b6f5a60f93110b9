"""Jobs that run later, jobs that run first, and a job that is added only once."""

from __future__ import annotations

import asyncio

from toril import Deduplication, Job, Queue, Worker


async def main() -> None:
    order: list[str] = []

    async def note(job: Job) -> None:
        order.append(job.name)

    async with Queue("notes") as queue:
        await queue.add("in a moment", delay=0.2)
        await queue.add("not urgent", priority=100)
        await queue.add("urgent", priority=1)
        first = await queue.add("once", deduplication=Deduplication("report of today"))
        again = await queue.add("once", deduplication=Deduplication("report of today"))
        print(first.added, again.added, first.id == again.id)
        async with Worker("notes", note) as worker:
            while len(order) < 4:
                await worker.run_until_idle()
    print(order)


asyncio.run(main())

# prints:
# True False True
# ['once', 'urgent', 'not urgent', 'in a moment']
