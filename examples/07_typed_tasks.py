"""Tasks: functions whose calls become jobs. Arguments and results are typed, and checked at both ends.

In production the worker is a process of its own: `toril worker shop:app`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from toril import App
from toril.app import chain, parallel_then

app = App(concurrency=10)


@dataclass
class Receipt:
    to: str
    words: int


@app.task(queue="emails", attempts=5, job_timeout=30, unique=True)
async def send(to: str, text: str = "Hello") -> Receipt:
    return Receipt(to, len(text.split()))


@app.task(queue="emails")
async def archive(receipt: Receipt) -> str:
    return f"{receipt.to}: {receipt.words}"


@app.task(queue="emails")
async def total(receipts: list[Receipt]) -> int:
    return sum(one.words for one in receipts)


async def main() -> None:
    async with app.worker():
        job = await send.enqueue("ada@example.org", text="How do you do?")
        print(await job.result(timeout=10))
        both = await app.enqueue_many(
            [send.bind("bob@example.org"), send.options(priority=1).bind("eve@example.org")]
        )
        print([(await one.result(timeout=10)).to for one in both])
        chained = await chain(send.bind("kim@example.org"), archive).enqueue()
        print(await chained.result(timeout=10))
        last = await parallel_then(
            [send.bind("lee@example.org"), send.bind("mia@example.org")], total
        ).enqueue()
        print(await last.result(timeout=10))
    print(await send("zoe@example.org"))  # a direct call runs the function


asyncio.run(main())

# prints:
# Receipt(to='ada@example.org', words=4)
# ['bob@example.org', 'eve@example.org']
# kim@example.org: 1
# 2
# Receipt(to='zoe@example.org', words=1)
