"""A stream worker in a process of its own, to be killed by tests: consumer_process.py URL PREFIX QUEUE.

It counts every delivery in a hash of the test's own, so that the test can tell how often each job was handed out.
"""

from __future__ import annotations

import asyncio
import sys

import redis.asyncio

from toril import Envelope, PermanentError, StreamWorker, TransientError


async def main() -> None:
    url, prefix, queue = sys.argv[1:]
    client = redis.asyncio.Redis.from_url(url)

    async def handle(envelope: Envelope) -> None:
        await client.hincrby(f"{prefix}:deliveries", envelope.job_id, 1)
        match envelope.payload.get("poison"):
            case "permanent":
                raise PermanentError("this job can never succeed")
            case "transient":
                raise TransientError("this job never succeeds")

    worker = StreamWorker(
        queue,
        handle,
        redis=url,
        prefix=prefix,
        env="test",
        concurrency=20,
        claim_idle=1.0,
        lock_duration=1.0,
        heartbeat_interval=0.2,
        stalled_check_interval=0.3,
        backoff_delay=0.05,
    )
    await worker.run()
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
