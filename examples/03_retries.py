"""What happens after an error: another attempt later, or the end.

TransientError is worth another attempt, PermanentError is not. Failed jobs stay in the queue until somebody retries or
removes them.
"""

from __future__ import annotations

import asyncio

from toril import Backoff, Job, PermanentError, Queue, TransientError, Worker


async def charge(job: Job) -> str:
    if job.data["card"] == "expired":
        raise PermanentError("the card has expired")
    if job.attempts_made < 2:
        raise TransientError("the bank does not answer")
    return f"charged at attempt {job.attempts_made + 1}"


async def main() -> None:
    async with Queue("payments") as queue:
        good = await queue.add("charge", {"card": "good"}, attempts=5, backoff=Backoff.exponential(0.05))
        await queue.add("charge", {"card": "expired"}, attempts=5)
        async with Worker("payments", charge) as worker:
            print(await good.wait_until_finished(timeout=10))
            await worker.run_until_idle()
        for failed in await queue.get_failed():
            print(f"{failed.failed_reason}, after {failed.attempts_made} attempt")
        print(await queue.retry_jobs(), "job retried")


asyncio.run(main())

# prints:
# charged at attempt 3
# the card has expired, after 1 attempt
# 1 job retried
