"""Workers that hold slots of groups are killed: the slots come free, nothing is lost, and limits hold all the while.

`python -m tests.groups.killed_workers` kills 20 of them; `--kills` another number.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.worker_processes import Fleet
from tests.servers import Server
from tests.waiting import until, until_equal
from toril import GroupLimits, JobOptions, NewJob, Queue
from toril.commands.command import plain
from toril.transport import AsyncTransport

QUEUE = "tenants"
GROUPS = 10
LIMIT = 2  # jobs of a group that run at once
PROCESSES = 3
LOCK = 1.0  # seconds
WORK = 0.05  # seconds that a job takes
JOBS_PER_KILL = 400
LARGEST_STALLED_COUNT = 1000
# One job in so many fails at its first attempt.
FAILING = 7


@dataclass(frozen=True, slots=True)
class Found:
    """What happened while workers were killed."""

    kills: int
    jobs: int
    completed: int
    stalled: int  # jobs that a killed worker had
    most_at_once: int  # of any group, by the events of the queue
    keys_left: list[str]  # about slots and held jobs


async def run(url: str, *, kills: int, prefix: str = "bull", within: float = 600) -> Found:
    """Kills one process after the other while it has jobs, and starts another in its place."""
    jobs = kills * JOBS_PER_KILL
    options = {"lock": LOCK, "sweep": LOCK, "concurrency": 10, "max_stalled": LARGEST_STALLED_COUNT}
    fleet = Fleet(url, prefix, QUEUE, **options, log=os.devnull)  # no line for each attempt that fails
    async with Queue(QUEUE, redis=url, prefix=prefix, events_max_len=50 * jobs) as queue:
        await queue.set_group_limits(None, GroupLimits(concurrency=LIMIT))
        await queue.add_bulk([_job(number) for number in range(jobs)])
        try:
            await asyncio.to_thread(fleet.launch, PROCESSES)
            for _ in range(kills):
                await _some_jobs_are_completed(queue, within)
                await asyncio.to_thread(fleet.kill, fleet.crew[0])
                await asyncio.to_thread(fleet.launch)
            await until_equal(lambda: _completed(queue), jobs, within=within)
        finally:
            await asyncio.to_thread(fleet.end)
        completed = await _completed(queue)
        async with AsyncTransport(url) as transport:
            stalled, most = _running(await transport.run(plain(list, "XRANGE", queue.keys.events, "-", "+")))
            left = await transport.run(plain(list, "KEYS", queue.keys.toril("group:*")))
    return Found(kills, jobs, completed, stalled, most, [key.decode() for key in left])


def _job(number: int) -> NewJob:
    group = f"g{number % GROUPS}"
    data = {"seconds": WORK, "fail": int(number % FAILING == 0)}
    return NewJob("n", data, JobOptions(group=group, job_id=f"{group}-{number}", attempts=2, backoff=0.01))


async def _some_jobs_are_completed(queue: Queue, within: float) -> None:
    before = await _completed(queue)

    async def has_grown() -> bool:
        return await _completed(queue) > before + GROUPS

    await until(has_grown, "some more jobs are completed", within)


async def _completed(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed


def _running(entries: Iterable[tuple[bytes, list[bytes]]]) -> tuple[int, int]:
    """How many times a job stalled, and the most jobs of a group that were active at once."""
    active: dict[str, set[str]] = {}
    stalled = most = 0
    for _, flat in entries:
        event = {one.decode(): other.decode() for one, other in zip(flat[::2], flat[1::2], strict=True)}
        job_id = event.get("jobId", "")
        jobs = active.setdefault(job_id.partition("-")[0], set())
        if event["event"] == "active":
            jobs.add(job_id)
            most = max(most, len(jobs))
        else:
            jobs.discard(job_id)
        stalled += event["event"] == "stalled"
    return stalled, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with Server.valkey() as server:
        found = asyncio.run(run(server.url, kills=options.kills))
    print(
        f"{found.kills} workers killed: {found.completed} of {found.jobs} jobs completed, {found.stalled} of them "
        f"taken from killed workers; at most {found.most_at_once} of a group at once ({LIMIT} allowed), "
        f"{len(found.keys_left)} keys left"
    )
    if not found.stalled or found.most_at_once > LIMIT or found.keys_left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
