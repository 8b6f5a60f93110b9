"""A small application: one task that another function enqueues.

toril worker welcome:app                     runs the tasks
python welcome.py ada@example.com           enqueues one, and waits for its result
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from toril import App

app = App(concurrency=10)


@dataclass
class Receipt:
    to: str
    characters: int


@app.task(queue="emails", attempts=5, job_timeout=30, retry_on=(ConnectionError,))
async def send_welcome(to: str, name: str = "friend") -> Receipt:
    """Sends an e-mail; this one only counts its characters."""
    text = f"Welcome, {name}!"
    return Receipt(to, len(text))


async def register(address: str) -> None:
    """Registers a customer, who gets an e-mail a minute later."""
    await send_welcome.options(delay=60).enqueue(address, name=address.partition("@")[0])


async def main(address: str) -> None:
    async with app:
        job = await send_welcome.enqueue(address)
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
