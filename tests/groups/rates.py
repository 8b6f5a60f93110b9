"""Rate limits of groups: never more starts in any period than allowed, and nearly all of them used.

`python -m tests.groups.rates` runs for 30 seconds; `--seconds` for another time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.servers import Server
from toril import GroupLimits, Job, JobOptions, NewJob, Queue, RateLimit, Worker
from toril.commands.command import plain
from toril.transport import AsyncTransport

QUEUE = "tenants"
WORKERS = 2
CONCURRENCY = 50
# Jobs and seconds: a usual limit, one with short periods, one with many starts in each.
LIMITS = {"usual": RateLimit(10, 1.0), "short": RateLimit(2, 0.2), "large": RateLimit(300, 3.0)}


@dataclass(frozen=True, slots=True)
class Usage:
    """The starts of a group, measured by the server's clock."""

    limit: RateLimit
    starts: Sequence[int]  # ms
    seconds: float

    @property
    def most_in_a_period(self) -> int:
        """The largest number of starts in any period; a period begins with a start."""
        period, most, first = self.limit.period * 1000, 0, 0
        for last, at in enumerate(self.starts):
            while self.starts[first] <= at - period:
                first += 1
            most = max(most, last - first + 1)
        return most

    @property
    def share(self) -> float:
        """How many of the allowed starts were used."""
        since = self.starts[0]
        used = sum(at < since + self.seconds * 1000 for at in self.starts)
        return used / (self.limit.count * self.seconds / self.limit.period)


async def run(url: str, seconds: float, prefix: str = "bull") -> dict[str, Usage]:
    """Runs jobs of groups with rate limits for so many seconds."""

    async def nothing(_: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=url, prefix=prefix, events_max_len=1_000_000) as queue:
        for group, limit in LIMITS.items():
            await queue.set_group_limits(group, GroupLimits(rate_limit=limit))
            size = int(limit.count * (seconds / limit.period + 2))
            await queue.add_bulk([NewJob(group, {}, JobOptions(group=group)) for _ in range(size)])
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(WORKERS):
                worker = Worker(QUEUE, nothing, redis=url, prefix=prefix, concurrency=CONCURRENCY)
                await stack.enter_async_context(worker)
            await asyncio.sleep(seconds + 1)
        starts = await _starts(queue, url)
    return {group: Usage(limit, starts[group], seconds) for group, limit in LIMITS.items()}


async def _starts(queue: Queue, url: str) -> dict[str, list[int]]:
    """When jobs became active, by the ids of the events, which are times of the server."""
    async with AsyncTransport(url) as transport:
        entries = await transport.run(plain(list, "XRANGE", queue.keys.events, "-", "+"))
    starts: dict[str, list[int]] = {group: [] for group in LIMITS}
    names: dict[bytes, str] = {}
    for entry_id, flat in entries:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if fields[b"event"] == b"added":
            names[fields[b"jobId"]] = fields[b"name"].decode()
        elif fields[b"event"] == b"active":
            starts[names[fields[b"jobId"]]].append(int(entry_id.split(b"-")[0]))
    return starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with Server.valkey() as server:
        found = asyncio.run(run(server.url, options.seconds))
    for group, usage in found.items():
        limit = usage.limit
        print(
            f"{group}: {limit.count} in {limit.period:g} s allowed, at most {usage.most_in_a_period} in any period, "
            f"{usage.share:.1%} used over {usage.seconds:g} s"
        )
    if any(one.most_in_a_period > one.limit.count or one.share < 0.95 for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
