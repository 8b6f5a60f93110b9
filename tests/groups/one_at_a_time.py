"""Concurrency 1 per group: never two jobs of a group at once, and their order is kept with retries.

`python -m tests.groups.one_at_a_time` runs 50,000 jobs of 50 groups by 4 workers; `--jobs` fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.servers import Server
from toril import GroupLimits, Job, JobOptions, NewJob, Queue, TransientError, Worker

QUEUE = "tenants"
WORKERS = 4
CONCURRENCY = 25
ADDED_AT_ONCE = 1000
# One job in so many fails at its first attempt.
FAILING = 10


@dataclass
class Watcher:
    """Runs jobs, and notes what must not happen."""

    groups: int
    jobs: int
    running: Counter[str] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)  # the newest job of each group that began
    failed_once: set[int] = field(default_factory=set)
    together: int = 0  # jobs that began while another one of their group ran
    out_of_order: int = 0
    completed: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, job: Job[Any]) -> None:
        group, number = str(job.group), int(job.data["n"])
        before = self.last.get(group)
        expected = {number} if before is None else {before, before + self.groups}
        self.out_of_order += number not in expected
        self.together += self.running[group] > 0
        self.last[group] = number
        self.running[group] += 1
        await asyncio.sleep(0)
        self.running[group] -= 1
        if number % FAILING == 0 and number not in self.failed_once:
            self.failed_once.add(number)
            raise TransientError("the first attempt fails")
        self.completed += 1
        if self.completed == self.jobs:
            self.done.set()


async def run(url: str, *, groups: int, jobs: int, prefix: str = "bull", within: float = 600) -> Watcher:
    """Adds jobs of groups in turns, and runs them by several workers in this process."""
    watcher = Watcher(groups, jobs)
    async with Queue(QUEUE, redis=url, prefix=prefix) as queue:
        await queue.set_group_limits(None, GroupLimits(concurrency=1, keep_order=True))
        for start in range(0, jobs, ADDED_AT_ONCE):
            numbers = range(start, min(start + ADDED_AT_ONCE, jobs))
            await queue.add_bulk([_job(n, groups) for n in numbers])
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(WORKERS):
                worker = Worker(QUEUE, watcher.handle, redis=url, prefix=prefix, concurrency=CONCURRENCY)
                await stack.enter_async_context(worker)
            await asyncio.wait_for(watcher.done.wait(), within)
        counts = await queue.get_job_counts()
        assert counts.completed == jobs, counts
    return watcher


def _job(number: int, groups: int) -> NewJob:
    return NewJob("n", {"n": number}, JobOptions(group=f"g{number % groups}", backoff=0.01))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--groups", type=int, default=50)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # a line for each attempt that fails
    with Server.valkey() as server:
        began = time.monotonic()
        found = asyncio.run(run(server.url, groups=options.groups, jobs=options.jobs))
    print(
        f"{found.completed} jobs of {found.groups} groups in {time.monotonic() - began:.0f} s, {WORKERS} workers, "
        f"{len(found.failed_once)} retried: {found.together} began beside another one of their group, "
        f"{found.out_of_order} out of order"
    )
    if found.together or found.out_of_order:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
