"""A handler reports its progress and writes log lines; another program follows them by events."""

from __future__ import annotations

import asyncio

from toril import Job, Queue, QueueEvents, Worker


async def render(job: Job) -> str:
    for percent in (50, 100):
        await job.log(f"{percent} % of {job.data['film']}")
        await job.update_progress(percent)
    return f"{job.data['film']}.mp4"


async def main() -> None:
    async with Queue("films") as queue, QueueEvents("films") as events:
        job = await queue.add("render", {"film": "metropolis"})
        async with Worker("films", render):
            async for event in events:
                if event.type in ("progress", "completed"):
                    print(event.type)
                if event.type == "completed":
                    break
        stored = await queue.get_job(job.id)
        assert stored is not None
        print(stored.progress, stored.returnvalue)
        print(await stored.get_logs())


asyncio.run(main())

# prints:
# progress
# progress
# completed
# 100 metropolis.mp4
# ['50 % of metropolis', '100 % of metropolis']
