"""A queue in a Redis stream. A job that fails for good becomes a dead letter, and is replayed."""

from __future__ import annotations

import asyncio

from toril import Envelope, PermanentError, StreamQueue, StreamWorker


async def main() -> None:
    known = {"ada"}

    async def greet(envelope: Envelope) -> str:
        name = envelope.payload["name"]
        if name not in known:
            raise PermanentError(f"who is {name}?")
        return f"hello {name}"

    async with StreamQueue("jobs.greetings") as queue:
        await queue.add("greet", {"name": "ada"})
        unknown = await queue.add("greet", {"name": "bob"})
        async with StreamWorker("jobs.greetings", greet, keep_results=60) as worker:
            await worker.run_until_idle()
            async for dead in queue.dead_letters():
                print(dead.dlq_reason, dead.last_error)
            known.add("bob")
            print(await queue.replay(), "replayed")
            await worker.run_until_idle()
        print(await queue.result(unknown.job_id))


asyncio.run(main())

# prints:
# permanent_error PermanentError: who is bob?
# 1 replayed
# hello bob
