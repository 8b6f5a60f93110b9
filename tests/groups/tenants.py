"""Three tenants with 10,000, 100 and 100 jobs: the small ones do not wait for the large one.

`python -m tests.groups.tenants` runs them by workers of toril, by one plain BullMQ worker of Node, and by both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from tests.groups.orders import FAIR_AFTER, SIZES, add_tenants, started
from tests.interop.reference import FIVE, Bench, Reference
from tests.servers import Server
from tests.waiting import until_equal
from toril import Job, Queue, Worker

QUEUE = "tenants"
SMALL = ("small", "other")
TORIL_WORKERS = 2
CONCURRENCY = 100
NODE_CONCURRENCY = 10
WITHIN = 100.0


async def run(url: str, *, workers: int, bench: Bench | None) -> list[str]:
    """Runs the jobs of the tenants by so many workers of toril, and by one of Node; returns the order of the starts."""

    async def nothing(_: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=url, events_max_len=200_000) as queue:
        await add_tenants(queue)
        async with contextlib.AsyncExitStack() as stack:
            if bench is not None:
                await bench.start_worker("w", concurrency=NODE_CONCURRENCY)
                stack.push_async_callback(bench.stop, "w")
            for _ in range(workers):
                await stack.enter_async_context(Worker(QUEUE, nothing, redis=url, concurrency=CONCURRENCY))
            await until_equal(lambda: _completed(queue), sum(SIZES.values()), within=WITHIN)
        return await started(queue, url)


async def _completed(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed


def last_places(order: list[str]) -> dict[str, int]:
    """How many jobs had been started when the last job of each small tenant was."""
    return {group: 1 + order.index(f"{group}-{SIZES[group] - 1}") for group in SMALL}


def _report(title: str, places: Mapping[str, int], most: int) -> bool:
    found = ", ".join(f"{group} {place}" for group, place in places.items())
    print(f"{title}: last jobs of the small tenants started as number {found}; allowed are {most}")
    return max(places.values()) <= most


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    kinds = {
        f"{TORIL_WORKERS} workers of toril": (TORIL_WORKERS, False),
        f"one worker of Node {FIVE}": (0, True),
        "all of them": (TORIL_WORKERS, True),
    }
    fair = []
    with Reference(FIVE) as node:
        for title, (workers, has_node) in kinds.items():
            with Server.valkey() as server:
                bench = node.bench(QUEUE, url=server.url) if has_node else None
                order = asyncio.run(run(server.url, workers=workers, bench=bench))
                if bench is not None:
                    bench.close()
            most = FAIR_AFTER + workers * CONCURRENCY + has_node * NODE_CONCURRENCY
            fair.append(_report(title, last_places(order), most))
    if not all(fair):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
