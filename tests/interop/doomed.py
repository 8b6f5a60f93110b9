"""A toril worker in a process of its own, made to be killed: `python -m tests.interop.doomed URL PREFIX QUEUE N`.

It takes N jobs, and never gives them back.
"""

from __future__ import annotations

import asyncio
import sys

from tests.interop.workload import follow_instructions
from toril import Worker


async def main(url: str, prefix: str, queue: str, concurrency: str) -> None:
    worker = Worker(
        queue, follow_instructions, redis=url, prefix=prefix, concurrency=int(concurrency), lock_duration=1.0
    )
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
