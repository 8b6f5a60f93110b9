"""Many tenants in one queue: they are served in turns, and each may have limits of its own."""

from __future__ import annotations

import asyncio

from toril import GroupLimits, Job, Queue, Worker
from toril.errors import GroupFull


async def main() -> None:
    order: list[str] = []

    async def send(job: Job) -> None:
        order.append(f"{job.group}-{job.data['number']}")

    async with Queue("mails") as queue:
        await queue.set_group_limits("large", GroupLimits(concurrency=1, max_size=4))
        for number in range(4):
            await queue.add("send", {"number": number}, group="large")
        await queue.add("send", {"number": 0}, group="small")
        try:
            await queue.add("send", {"number": 4}, group="large")
        except GroupFull as full:
            print(type(full).__name__)
        async with Worker("mails", send) as worker:
            await worker.run_until_idle()
    print(len(order), "sent; the small tenant did not wait for the large one:", order[-1] != "small-0")


asyncio.run(main())

# prints:
# GroupFull
# 5 sent; the small tenant did not wait for the large one: True
