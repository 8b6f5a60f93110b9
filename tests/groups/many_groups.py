"""Many groups: memory and cost per job do not grow with their number.

`python -m tests.groups.many_groups` compares 10,000 groups with 100,000, of two jobs each, under limits.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from typing import Any

from tests.servers import Server
from toril import GroupLimits, Job, JobOptions, NewJob, Queue, Worker
from toril.commands.command import plain
from toril.transport import AsyncTransport

QUEUE = "tenants"
JOBS_PER_GROUP = 2
ADDED_AT_ONCE = 1000
# More than the noise of a busy machine; a cost that grows with the number of groups would be ten times as large.
MOST = 1.5


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job costs the server."""

    bytes_waiting: float
    microseconds_added: float
    microseconds_processed: float
    keys_left: int  # about groups, when all jobs have ended


async def measure(url: str, groups: int) -> Cost:
    """Adds jobs of so many groups, runs them one at a time per group, and asks the server what it cost."""
    jobs, done = groups * JOBS_PER_GROUP, asyncio.Event()
    left = jobs

    async def handle(_: Job[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with AsyncTransport(url) as transport, Queue(QUEUE, redis=url) as queue:
        await transport.run(plain(bytes, "FLUSHALL"))
        await queue.set_group_limits(None, GroupLimits(concurrency=1))
        empty, began = await _memory(transport), await _cpu(transport)
        for start in range(0, jobs, ADDED_AT_ONCE):
            numbers = range(start, min(start + ADDED_AT_ONCE, jobs))
            await queue.add_bulk([NewJob("n", {}, JobOptions(group=f"g{n % groups}")) for n in numbers])
        full, added = await _memory(transport), await _cpu(transport)
        async with Worker(QUEUE, handle, redis=url, concurrency=100) as worker:
            await done.wait()
            await worker.run_until_idle()
        ended = await _cpu(transport)
        names = ("held:*", "slots:*", "starts:*", "waiting:*")
        found = [await transport.run(plain(len, "KEYS", queue.keys.toril(f"group:{one}"))) for one in names]
    return Cost((full - empty) / jobs, (added - began) / jobs, (ended - added) / jobs, sum(found))


async def _memory(transport: AsyncTransport) -> int:
    return int((await _info(transport, "memory"))["used_memory"])


async def _cpu(transport: AsyncTransport) -> float:
    """Microseconds of the server's main thread."""
    found = await _info(transport, "cpu")
    return 1e6 * (float(found["used_cpu_user_main_thread"]) + float(found["used_cpu_sys_main_thread"]))


async def _info(transport: AsyncTransport, section: str) -> dict[str, str]:
    text = await transport.run(plain(lambda reply: str(reply.decode()), "INFO", section))
    pairs = [line.partition(":") for line in text.splitlines() if ":" in line]
    return {name: value for name, _, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    options = parser.parse_args()
    with Server.valkey() as server:
        few = asyncio.run(measure(server.url, options.groups // 10))
        many = asyncio.run(measure(server.url, options.groups))
    for count, cost in ((options.groups // 10, few), (options.groups, many)):
        print(
            f"{count} groups: {cost.bytes_waiting:.0f} bytes per waiting job, {cost.microseconds_added:.0f} us of the "
            f"server per add, {cost.microseconds_processed:.0f} us per job processed, {cost.keys_left} keys left"
        )
    growth = [
        many.bytes_waiting / few.bytes_waiting,
        many.microseconds_added / few.microseconds_added,
        many.microseconds_processed / few.microseconds_processed,
    ]
    print("growth with ten times the groups: " + ", ".join(f"{one:.2f}" for one in growth))
    if many.keys_left or max(growth) > MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
