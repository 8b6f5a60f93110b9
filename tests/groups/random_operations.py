"""Random operations on the jobs of limited groups while workers run, stop and are killed: nothing stays held.

`python -m tests.groups.random_operations` does so for 60 seconds; `--seconds` and `--seed` choose otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.worker_processes import Fleet
from tests.servers import Server
from tests.waiting import until_equal
from toril import (
    FlowNode,
    FlowProducer,
    GroupLimits,
    Job,
    JobCounts,
    JobOptions,
    Queue,
    RateLimit,
    TorilError,
)
from toril.commands.command import plain
from toril.transport import AsyncTransport

QUEUE = "tenants"
GROUPS = [f"g{number}" for number in range(6)]
LIMITS: list[GroupLimits | None] = [
    GroupLimits(concurrency=1),
    GroupLimits(concurrency=2),
    GroupLimits(concurrency=1, keep_order=True),
    GroupLimits(rate_limit=RateLimit(5, 0.5)),
    GroupLimits(concurrency=2, rate_limit=RateLimit(10, 0.5)),
    GroupLimits(max_size=30, concurrency=3),
    None,
]
WORKERS = 2
# One operation in so many ends a process, and waits until another one has started.
ENDING = 60


@dataclass(slots=True)
class RandomOperations:
    """Does something to a queue at random."""

    queue: Queue
    flows: FlowProducer
    fleet: Fleet
    rng: random.Random
    added: int = 0
    done: list[str] = field(default_factory=list)

    async def one(self) -> None:
        operations: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (8, self.add), (1, self.add_flow), (1, self.queue.pause), (2, self.queue.resume), (1, self.pause_group),
            (2, self.resume_group), (1, self.set_limits), (5, self.change_one), (1, self.clean),
        ]  # fmt: skip
        weights = [weight for weight, _ in operations]
        (operation,) = self.rng.choices([one for _, one in operations], weights)
        if self.rng.randrange(ENDING) == 0:
            operation = self.end_a_process
        self.done.append(getattr(operation, "__name__", "?"))
        with contextlib.suppress(TorilError):  # a job that moved meanwhile, a group that is full
            await operation()

    def _group(self) -> str:
        return self.rng.choice(GROUPS)

    async def add(self) -> None:
        for _ in range(self.rng.randint(1, 20)):
            self.added += 1
            options: dict[str, Any] = {
                "attempts": self.rng.randint(1, 3),
                "backoff": self.rng.choice([0, 0.01, 0.3]),
                "delay": self.rng.choice([0, 0, 0, 0.2]),
            }
            data = {"seconds": self.rng.choice([0, 0.005, 0.05]), "fail": self.rng.choice([0, 0, 0, 1, 5])}
            with contextlib.suppress(TorilError):
                await self.queue.add("n", data, group=self._group(), **options)

    async def add_flow(self) -> None:
        child = JobOptions(group=self._group(), ignore_dependency_on_failure=True)
        children = [FlowNode("n", queue=QUEUE, options=child) for _ in range(3)]
        await self.flows.add(
            FlowNode("n", queue=QUEUE, options=JobOptions(group=self._group()), children=children)
        )

    async def pause_group(self) -> None:
        await self.queue.pause_group(self._group())

    async def resume_group(self) -> None:
        await self.queue.resume_group(self._group())

    async def set_limits(self) -> None:
        await self.queue.set_group_limits(self._group(), self.rng.choice(LIMITS))

    async def change_one(self) -> None:
        """Does to one job what a person at a dashboard does."""
        states = self.rng.choice(
            [["delayed"], ["prioritized"], ["failed"], ["completed"], ["delayed", "waiting"]]
        )
        found: list[Job[Any]] = await self.queue.get_jobs(states, start=0, end=50)
        if not found:
            return
        job = self.rng.choice(found)
        match states:
            case ["failed"]:
                await job.retry(reset_attempts_started=self.rng.random() < 0.5)
            case ["completed"]:
                await job.retry("completed")
            case ["prioritized"]:
                await job.change_priority(self.rng.choice([0, 1, 5]))
            case ["delayed"]:
                await (job.promote() if self.rng.random() < 0.5 else job.change_delay(0.2))
            case _:
                await job.remove()

    async def clean(self) -> None:
        await self.queue.clean(grace=0, limit=20, state="completed")
        await self.queue.retry_jobs(limit=5)

    async def end_a_process(self) -> None:
        end = self.rng.choice([self.fleet.kill, self.fleet.terminate])
        await asyncio.to_thread(end, self.rng.choice(self.fleet.crew))
        await asyncio.to_thread(self.fleet.launch)


@dataclass(frozen=True, slots=True)
class Found:
    """What is left when all groups are open again."""

    operations: int
    added: int
    counts: JobCounts
    keys_left: list[str]  # about slots and held jobs


async def run(url: str, *, seconds: float, seed: int, prefix: str = "bull", within: float = 120) -> Found:
    options = {"lock": 1.0, "sweep": 1.0, "concurrency": 6, "max_stalled": 1000, "log": os.devnull}
    fleet = Fleet(url, prefix, QUEUE, **options)
    async with (
        Queue(QUEUE, redis=url, prefix=prefix) as queue,
        FlowProducer(redis=url, prefix=prefix) as flows,
    ):
        for group, limits in zip(GROUPS, LIMITS, strict=False):
            await queue.set_group_limits(group, limits)
        operations = RandomOperations(queue, flows, fleet, random.Random(seed))
        try:
            await asyncio.to_thread(fleet.launch, WORKERS)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await operations.one()
            await queue.resume()
            for group in GROUPS:
                await queue.resume_group(group)
            await until_equal(lambda: _unfinished(queue), 0, within=within)
            await until_equal(lambda: _keys_left(queue, url), [], within=within)
        finally:
            await asyncio.to_thread(fleet.end)
        left = await _keys_left(queue, url)
        return Found(len(operations.done), operations.added, await queue.get_job_counts(), left)


async def _unfinished(queue: Queue) -> int:
    counts = await queue.get_job_counts()
    return counts.ready + counts.active + counts.delayed + counts.waiting_children + counts.paused


async def _keys_left(queue: Queue, url: str) -> list[str]:
    async with AsyncTransport(url) as transport:
        patterns = ("group:held:*", "group:slots:*", "group-slots", "group-holding")
        found = [await transport.run(plain(list, "KEYS", queue.keys.toril(one))) for one in patterns]
    return [key.decode() for keys in found for key in keys]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    with Server.valkey() as server:
        found = asyncio.run(run(server.url, seconds=chosen.seconds, seed=chosen.seed))
    print(f"seed {chosen.seed}: {found}")


if __name__ == "__main__":
    main()
