"""Whole systems on one queue, Node and toril together; each scenario counts its jobs and lists what is not right.

A scenario waits for events, never for time, and leaves no connection open.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.interop.consistency import inconsistencies
from tests.interop.keyspace import Keyspace, dump
from tests.interop.reference import Bench, Notice, Reference
from tests.interop.workload import Work, follow_instructions, workload, wrong_ends
from tests.servers import Server
from toril import JobFailed, Queue, QueueEvents, Worker

WITHIN = 150.0  # Seconds; every scenario takes a few, but a busy machine may be ten times slower.
CONCURRENCY = 20
LOCK_MS = 1_000
QUEUE = "scenario"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a scenario found."""

    scenario: str
    jobs: int
    differences: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a scenario takes place: one server, one namespace, one Node process."""

    server: Server
    prefix: str
    reference: Reference

    def keyspace(self) -> Keyspace:
        with self.server.client() as client:
            return dump(client, self.prefix)

    @asynccontextmanager
    async def bench(self, queue: str = QUEUE, **settings: Any) -> AsyncIterator[Bench]:
        bench = await asyncio.to_thread(
            lambda: self.reference.bench(queue, url=self.server.url, prefix=self.prefix, **settings)
        )
        try:
            yield bench
        finally:
            await bench.ask("close")

    def queue(self, name: str = QUEUE) -> Queue[Any]:
        return Queue(name, redis=self.server.url, prefix=self.prefix)

    def events(self, name: str = QUEUE) -> QueueEvents:
        return QueueEvents(name, redis=self.server.url, prefix=self.prefix, last_id="0-0")

    def worker(self, name: str = QUEUE, **options: Any) -> Worker:
        given = {"concurrency": CONCURRENCY, "backoff_jitter": 0.0, **options}
        return Worker(name, follow_instructions, redis=self.server.url, prefix=self.prefix, **given)


async def start_toril_worker(ground: Ground, concurrency: int) -> asyncio.subprocess.Process:
    """A worker in a process of its own (see toril_worker_process.py), ready for jobs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.interop.toril_worker_process",
        *(ground.server.url, ground.prefix, QUEUE, str(concurrency)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def until_ended(ground: Ground, jobs: int, queue: str = QUEUE) -> None:
    """Returns when that many jobs have completed or failed for good."""
    left = jobs
    async with asyncio.timeout(WITHIN), ground.events(queue) as events:
        async for event in events:
            left -= event.type in ("completed", "failed")
            if not left:
                return


def _faults(ground: Ground, works: Sequence[Work], queue: str = QUEUE) -> list[str]:
    keyspace = ground.keyspace()
    return [
        *wrong_ends(keyspace, queue, works, ground.prefix),
        *inconsistencies(keyspace, queue, ground.prefix),
    ]


# Producers and workers


async def node_producer_toril_worker(ground: Ground, jobs: int) -> Result:
    works = workload(jobs, seed=1)
    async with ground.bench() as bench:
        await bench.ask("add_bulk", jobs=[work.for_node() for work in works])
        async with ground.worker():
            await until_ended(ground, jobs)
    return Result(scenario="Node producer → toril worker", jobs=jobs, differences=_faults(ground, works))


async def toril_producer_node_worker(ground: Ground, jobs: int) -> Result:
    works = workload(jobs, seed=2)
    async with ground.bench() as bench, ground.queue() as queue:
        await queue.add_bulk([work.for_toril() for work in works])
        await bench.start_worker(f"{ground.prefix}-worker", concurrency=CONCURRENCY)
        await until_ended(ground, jobs)
        await bench.stop(f"{ground.prefix}-worker")
    return Result(scenario="toril producer → Node worker", jobs=jobs, differences=_faults(ground, works))


# Events


async def events_alike(ground: Ground, jobs: int) -> Result:
    """What Node's QueueEvents hears of each job when toril works is what it hears when Node works."""
    works = workload(jobs, seed=3)
    received = {}
    for kind in ("node", "toril"):
        async with ground.bench(kind) as bench:
            await bench.ask("add_bulk", jobs=[work.for_node() for work in works])
            handle = f"{ground.prefix}-{kind}"
            stream = await bench.start_events(handle)
            async with _working(ground, bench, kind):
                await stream.until(lambda notices: _ended(notices) == jobs, WITHIN)
                await bench.ask("pause")  # its event comes after all that the last job still caused
                received[kind] = _by_job(
                    await stream.until(lambda notices: notices[-1].what == "paused", WITHIN)
                )
            await bench.stop(handle)
    wrong = [
        f"{job_id}: Node made {received['node'].get(job_id)}, toril {received['toril'].get(job_id)}"
        for job_id in sorted(received["node"].keys() | received["toril"].keys())
        if received["node"].get(job_id) != received["toril"].get(job_id)
    ]
    return Result(scenario="events received by Node's QueueEvents", jobs=2 * jobs, differences=wrong)


@asynccontextmanager
async def _working(ground: Ground, bench: Bench, kind: str) -> AsyncIterator[None]:
    """A worker of that kind on the queue of the same name."""
    if kind == "toril":
        async with ground.worker(kind):
            yield
        return
    handle = f"{ground.prefix}-{kind}-worker"
    await bench.start_worker(handle, concurrency=CONCURRENCY)
    yield
    await bench.stop(handle)


def _ended(notices: Sequence[Notice]) -> int:
    return sum(item.what in ("completed", "failed") for item in notices)


def _by_job(notices: Sequence[Notice]) -> dict[str, list[tuple[str, str]]]:
    """Events in order for each job; the absolute times in `delayed` are left out."""
    received: dict[str, list[tuple[str, str]]] = {}
    for item in notices:
        fields = {name: value for name, value in item.fields.items() if name not in ("jobId", "delay")}
        if "jobId" in item.fields:
            received.setdefault(item.fields["jobId"], []).append((item.what, repr(sorted(fields.items()))))
    return received


async def finishes_awaited(ground: Ground, jobs: int) -> Result:
    """`waitUntilFinished` of each side on jobs that the other works off."""
    works = workload(jobs, seed=4)
    wrong: list[str] = []
    for kind in ("node", "toril"):
        async with ground.bench(kind) as bench, ground.queue(kind) as queue:
            added = await queue.add_bulk([work.for_toril() for work in works])
            async with asyncio.timeout(WITHIN), _working(ground, bench, kind):
                if kind == "toril":
                    ends = await _awaited_by_node(
                        bench, [work.id for work in works], f"{ground.prefix}-await"
                    )
                else:
                    ends = await asyncio.gather(*(_awaited_by_toril(job) for job in added))
        for work, end in zip(works, ends, strict=True):
            wanted = ("failed", work.data["error"]) if work.fails else ("completed", work.data["result"])
            if end != wanted:
                wrong.append(f"{work.id} worked by {kind} ended for the other as {end}, not {wanted}")
    return Result(scenario="waitUntilFinished across", jobs=2 * jobs, differences=wrong)


async def _awaited_by_node(bench: Bench, ids: Sequence[str], handle: str) -> list[tuple[str, Any]]:
    await bench.start_events(handle)
    answers = await asyncio.gather(
        *(bench.wait_until_finished(job_id, events=handle, timeout=WITHIN) for job_id in ids),
        return_exceptions=True,
    )
    await bench.stop(handle)
    return [("failed", str(one)) if isinstance(one, BaseException) else ("completed", one) for one in answers]


async def _awaited_by_toril(job: Any) -> tuple[str, Any]:
    try:
        return "completed", await job.wait_until_finished(WITHIN)
    except JobFailed as failure:
        return "failed", failure.reason


# Death


async def toril_recovers_what_node_left(ground: Ground, jobs: int) -> Result:
    """A Node process is killed with jobs in hand; a toril worker finishes them."""
    works = _blocking(jobs)
    with Reference() as doomed:
        there = Ground(ground.server, ground.prefix, doomed)
        bench = await asyncio.to_thread(
            lambda: doomed.bench(QUEUE, url=there.server.url, prefix=there.prefix)
        )
        await bench.ask("add_bulk", jobs=[work.for_node() for work in works])
        stream = await bench.start_worker(
            f"{ground.prefix}-doomed", concurrency=jobs, lockDuration=LOCK_MS, skipStalledCheck=True
        )
        await stream.until(lambda notices: sum(item.what == "active" for item in notices) == jobs, WITHIN)
        await asyncio.to_thread(doomed.kill)
    await _unblock(ground, works)
    async with ground.worker(stalled_check_interval=LOCK_MS / 1000, lock_duration=LOCK_MS / 1000):
        await until_ended(ground, jobs)
    return Result(scenario="Node killed, toril recovers", jobs=jobs, differences=_recovered(ground, works))


async def node_recovers_what_toril_left(ground: Ground, jobs: int) -> Result:
    """A toril process is killed with jobs in hand; a Node worker finishes them."""
    works = _blocking(jobs)
    async with ground.bench() as bench, ground.queue() as queue:
        await queue.add_bulk([work.for_toril() for work in works])
        doomed = await start_toril_worker(ground, jobs)
        await _until_active(ground, jobs)
        doomed.send_signal(signal.SIGKILL)
        await doomed.communicate()
        await _unblock(ground, works)
        handle = f"{ground.prefix}-heir"
        await bench.start_worker(handle, concurrency=jobs, lockDuration=LOCK_MS, stalledInterval=LOCK_MS)
        await until_ended(ground, jobs)
        await bench.stop(handle)
    return Result(scenario="toril killed, Node recovers", jobs=jobs, differences=_recovered(ground, works))


def _blocking(jobs: int) -> list[Work]:
    opts = {"attempts": 1}
    return [Work("work", {"block": True, "result": n}, {**opts, "jobId": f"job-{n}"}) for n in range(jobs)]


async def _until_active(ground: Ground, jobs: int) -> None:
    left = jobs
    async with asyncio.timeout(WITHIN), ground.events() as events:
        async for event in events:
            left -= event.type == "active"
            if not left:
                return


async def _unblock(ground: Ground, works: Sequence[Work]) -> None:
    """The next worker finds jobs that end."""
    async with ground.queue() as queue:
        for work in works:
            job = await queue.get_job(work.id)
            assert job is not None
            await job.update_data({"result": work.data["result"]})


def _recovered(ground: Ground, works: Sequence[Work]) -> list[str]:
    """Each ended once, was started twice and stalled once, and all else is in order."""
    wrong: list[str] = []
    keyspace = ground.keyspace()
    for work in works:
        fields: Any = keyspace[f"{ground.prefix}:{QUEUE}:{work.id}"].content
        found = {name: fields.get(name) for name in ("atm", "ats", "stc", "returnvalue")}
        wanted = {"atm": "1", "ats": "2", "stc": "1", "returnvalue": str(work.data["result"])}
        if found != wanted:
            wrong.append(f"{work.id}: {found} instead of {wanted}")
    return [*wrong, *inconsistencies(keyspace, QUEUE, ground.prefix)]
