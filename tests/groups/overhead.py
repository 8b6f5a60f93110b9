"""What groups cost: the time of grouped jobs against that of plain ones, at concurrency 100.

`python -m tests.groups.overhead` runs each kind in turns; the median of the ratios per round is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.servers import Server
from toril import GroupLimits, Job, JobOptions, NewJob, Queue, Worker

QUEUE = "tenants"
CONCURRENCY = 100
GROUPS = 10
ADDED_AT_ONCE = 1000
MOST = 1.5
# Options of a job by its number, and the limits of all groups.
KINDS: dict[str, tuple[Callable[[int], JobOptions], GroupLimits | None]] = {
    "plain": (lambda _: JobOptions(), None),
    "groups": (lambda number: JobOptions(group=f"g{number % GROUPS}"), None),
    "groups, limits not reached": (
        lambda number: JobOptions(group=f"g{number % GROUPS}"),
        GroupLimits(concurrency=CONCURRENCY),
    ),
    "groups, jobs held": (lambda number: JobOptions(group=f"g{number % GROUPS}"), GroupLimits(concurrency=5)),
}
# Limits cost more: the server checks the group of each job, and moves a job that is held twice more.
BOUNDED = "groups"


async def seconds_for(url: str, kind: str, jobs: int) -> float:
    """How long a worker takes for so many jobs of a kind that wait."""
    options, limits = KINDS[kind]
    done, left = asyncio.Event(), jobs

    async def handle(_: Job[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with Queue(QUEUE, redis=url) as queue:
        await queue.set_group_limits(None, limits)
        for start in range(0, jobs, ADDED_AT_ONCE):
            await queue.add_bulk(
                [NewJob("n", {"i": n}, options(n)) for n in range(start, start + ADDED_AT_ONCE)]
            )
        began = time.perf_counter()
        async with Worker(QUEUE, handle, redis=url, concurrency=CONCURRENCY):
            await done.wait()
            taken = time.perf_counter() - began
        await queue.obliterate(force=True)
    return taken


async def run(url: str, jobs: int, rounds: int) -> dict[str, float]:
    """The median ratio to plain jobs, by kind."""
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        taken = {kind: await seconds_for(url, kind, jobs) for kind in KINDS}
        for kind, seconds in taken.items():
            ratios[kind].append(seconds / taken["plain"])
    return {kind: statistics.median(found) for kind, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with Server.valkey() as server:
        found = asyncio.run(run(server.url, options.jobs, options.rounds))
    for kind, ratio in found.items():
        print(f"{kind}: {ratio:.2f} x the time of plain jobs")
    if found[BOUNDED] > MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
