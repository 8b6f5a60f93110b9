"""The first part of the demo: producers, four kinds of worker, and one worker that is killed.

Guarantee: the part ends when every job has ended, or raises after `LONGEST` seconds. The counts are read from the
queues, so that jobs of other processes count as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from toril.cli._output import print_line
from toril.cli.demo import _handlers as handlers
from toril.cli.demo._child import Child
from toril.cli.demo._workload import (
    BUSIEST,
    BUSIEST_LIMIT,
    DIGEST,
    DIGEST_EVERY,
    DIGESTS,
    EMAILS,
    QUEUES,
    THUMBNAILS,
    TRANSCODE,
    VIDEOS,
    Workload,
)
from toril.errors import TorilError
from toril.jobs import Job
from toril.producer import FlowProducer, Queue
from toril.protocol.group_limits import GroupLimits
from toril.worker import Worker

# Short locks, so that the jobs of the killed worker come back within seconds instead of a minute.
LOCK_SECONDS: Final = 3.0
SWEEP_SECONDS: Final = 1.0
LOOK_EVERY: Final = 0.1
LONGEST: Final = 300.0


@dataclass(slots=True)
class Tally:
    """Ended jobs by queue, and the progress of renders that run."""

    totals: dict[str, int]
    ended: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    renders: dict[str, float] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return all(self.ended.get(queue, 0) >= total for queue, total in self.totals.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledWorker:
    """The worker that was killed, and what became of its jobs."""

    pid: int
    jobs: int  # that it ran when it was killed
    completed: int  # of these, by another worker
    seconds: float  # until the last of them ran again


@dataclass(slots=True)
class _Kill:
    pid: int
    at: datetime
    job_ids: list[str]


class DemoQueues:
    """The open queues of the demo."""

    def __init__(self, url: str, prefix: str, logger: logging.Logger) -> None:
        self.url = url
        self.prefix = prefix
        self.logger = logger
        self.queues = {name: Queue(name, redis=url, prefix=prefix) for name in QUEUES}

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[DemoQueues]:
        async with contextlib.AsyncExitStack() as stack:
            for queue in self.queues.values():
                await stack.enter_async_context(queue)
            yield self

    async def add(self, workload: Workload) -> None:
        """Adds all jobs, the flows and the schedule."""
        emails = self.queues[EMAILS]
        await emails.set_group_limits(BUSIEST, GroupLimits(concurrency=BUSIEST_LIMIT))
        await emails.add_bulk(workload.mails)
        await emails.schedulers.upsert(DIGEST, every=DIGEST_EVERY, limit=DIGESTS, name=DIGEST)
        await self.queues[VIDEOS].add_bulk(workload.renders)
        await self.queues[TRANSCODE].add_bulk(workload.transcodes)
        await self.queues[THUMBNAILS].add_bulk(workload.thumbnails)
        async with FlowProducer(redis=self.url, prefix=self.prefix) as flows:
            await flows.add_bulk(workload.flows)

    def workers(self, concurrency: int) -> list[Worker]:
        """Returns a worker of coroutines, one of threads and one of processes."""
        worker = functools.partial(Worker, redis=self.url, prefix=self.prefix, logger=self.logger)
        return [
            worker(EMAILS, handlers.send, concurrency=concurrency),
            worker(THUMBNAILS, handlers.thumbnail, executor="thread", concurrency=4),
            worker(TRANSCODE, handlers.transcode, executor="process", concurrency=2),
        ]

    def video_worker(self, concurrency: int) -> Worker:
        """Returns the worker that recovers the jobs of the killed one."""
        return Worker(
            VIDEOS,
            handlers.video_generation,
            redis=self.url,
            prefix=self.prefix,
            logger=self.logger,
            concurrency=concurrency,
            lock_duration=LOCK_SECONDS,
            stalled_check_interval=SWEEP_SECONDS,
        )

    async def obliterate(self) -> None:
        """Removes all jobs of all queues."""
        for queue in self.queues.values():
            await queue.obliterate(force=True)


async def run_workers(queues: DemoQueues, tally: Tally, concurrency: int, *, quiet: bool) -> KilledWorker:
    """Runs all workers until every job has ended; the first worker of video-generation is killed meanwhile."""
    video_worker = _start_video_worker(queues)
    try:
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(LONGEST):
            for worker in queues.workers(concurrency):
                await stack.enter_async_context(worker)
            counting = asyncio.create_task(_count(queues, tally))
            stack.push_async_callback(_cancelled, counting)
            kill = await _kill_at_work(queues.queues[VIDEOS], video_worker)
            if not quiet:
                print_line(
                    f"   kill -9 {kill.pid}: a worker of {VIDEOS} is gone with {len(kill.job_ids)} running jobs; "
                    f"their locks end after {LOCK_SECONDS:g} s, and another worker takes over"
                )
            await stack.enter_async_context(queues.video_worker(max(4, concurrency // 2)))
            await counting
    except TimeoutError:
        raise TorilError(f"the jobs of the demo did not end within {LONGEST:g} s") from None
    finally:
        video_worker.stop()
    return await _outcome(queues.queues[VIDEOS], kill)


def _start_video_worker(queues: DemoQueues) -> Child:
    server = ("--redis", queues.url, "--prefix", queues.prefix)
    handler = f"{handlers.__name__}:video_generation"
    options = (
        *("--concurrency", "4", "--lock-duration", str(LOCK_SECONDS)),
        *("--stalled-check-interval", str(SWEEP_SECONDS)),
    )
    return Child("worker", handler, "--queue", VIDEOS, *options, *server)


async def _count(queues: DemoQueues, tally: Tally) -> None:
    """Reads the counts until all jobs have ended."""
    while not tally.done:
        failed = 0
        for name, queue in queues.queues.items():
            counts = await queue.get_job_counts()
            tally.ended[name] = counts.completed + counts.failed
            failed += counts.failed
        tally.failed = failed
        active = await queues.queues[VIDEOS].get_jobs(["active"])
        tally.renders = {_title(job): _percent(job) for job in active if job.name == "render"}
        await asyncio.sleep(LOOK_EVERY)


def _title(job: Job) -> str:
    return f"render video {job.data['video']}"


def _percent(job: Job) -> float:
    return float(job.progress) if isinstance(job.progress, int | float) else 0.0


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _kill_at_work(queue: Queue, worker: Child) -> _Kill:
    """Kills the process as soon as it runs at least two jobs with progress, and returns their ids."""
    while worker.exit_code is None:
        active = await queue.get_jobs(["active"])
        mine = [job.id for job in active if f"-{worker.pid}-" in (job.processed_by or "")]
        if len(mine) >= 2 and any(_percent(job) > 0 for job in active):
            worker.kill()
            return _Kill(worker.pid, datetime.now(UTC), mine)
        await asyncio.sleep(LOOK_EVERY / 2)
    raise TorilError(f"the worker of {VIDEOS} ended by itself, with exit code {worker.exit_code}")


async def _outcome(queue: Queue, kill: _Kill) -> KilledWorker:
    jobs = [job for one in kill.job_ids if (job := await queue.get_job(one)) is not None]
    again = [
        job for job in jobs if job.finished_on is not None and f"-{kill.pid}-" not in (job.processed_by or "")
    ]
    begun = [job.processed_on for job in again if job.processed_on is not None]
    return KilledWorker(
        pid=kill.pid,
        jobs=len(kill.job_ids),
        completed=len(again),
        seconds=max(((one - kill.at).total_seconds() for one in begun), default=0.0),
    )


async def measured(queues: DemoQueues, workload: Workload) -> float:
    """Adds the jobs and returns the seconds that this took."""
    began = time.monotonic()
    await queues.add(workload)
    return time.monotonic() - began
