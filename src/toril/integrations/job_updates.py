"""The progress and the end of a job, as a web client follows them: by server-sent events.

    updates = JobUpdates(app)
    async for update in updates.follow("emails", job_id): ...      # progress …, then completed, failed or removed

Guarantee: the end of a job is never missed: it is read by the way `job.result()` waits, which reads the state after it
has subscribed to the events, after gaps and after silence. Whoever follows a job that has ended gets its end at once. A
slow client gets the newest progress and misses older ones. One reader of events serves all who follow jobs of a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from toril.app import App
from toril.errors import InvalidOption, JobFailed, JobNotFound
from toril.events import QueueEvents
from toril.jobs import Job
from toril.producer import Queue
from toril.protocol.codec import to_json
from toril.protocol.event import Event

# Proxies close connections without traffic, usually after 30 to 60 seconds.
KEEP_ALIVE: Final = 15.0
SSE_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SSE_MEDIA_TYPE: Final = "text/event-stream"

UpdateType: TypeAlias = Literal["progress", "completed", "failed", "removed"]


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """One update: `value` is the progress, the result, the reason of the failure, or None for a removed job."""

    type: UpdateType
    value: Any = None

    @property
    def is_end(self) -> bool:
        """Whether it is the last update of the job."""
        return self.type != "progress"

    def to_sse(self) -> bytes:
        """As a server-sent event, with the value as JSON, which has no line breaks."""
        return b"event: %s\ndata: %s\n\n" % (self.type.encode(), to_json(self.value))


class _Follower:
    """The newest progress that one client has not received yet."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._newest: list[object] = []

    def put(self, progress: object) -> None:
        self._newest = [progress]
        self._arrived.set()

    async def take(self) -> list[object]:
        await self._arrived.wait()
        return self.taken()

    def taken(self) -> list[Any]:
        self._arrived.clear()
        newest, self._newest = self._newest, []
        return newest


class _QueueFollowers:
    """Those who follow jobs of one queue, and the reader of its events, which runs while there are some."""

    def __init__(self, app: App, queue: Queue) -> None:
        keys = queue.keys
        self.queue = queue
        self._followers: dict[str, set[_Follower]] = {}
        self._events = QueueEvents(
            keys.name,
            redis=app.connection.address,
            prefix=keys.prefix,
            hash_tag=keys.hash_tag,
            policy=app.connection.policy,
            derive_retries=False,
            codecs=queue.codecs,
        )
        self._events.on("progress", self._on_progress)

    def _on_progress(self, event: Event) -> None:
        for follower in self._followers.get(event.job_id or "", ()):
            follower.put(event.progress)

    def add(self, job_id: str) -> _Follower:
        follower = _Follower()
        self._followers.setdefault(job_id, set()).add(follower)
        return follower

    def remove(self, job_id: str, follower: _Follower) -> bool:
        """Returns whether nobody is left."""
        self._followers[job_id].discard(follower)
        if not self._followers[job_id]:
            del self._followers[job_id]
        return not self._followers

    async def open(self) -> None:
        await self._events.open()

    async def close(self) -> None:
        await self._events.close()


class JobUpdates:
    """Follows jobs of the BullMQ queues of an app, in one event loop."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._by_queue: dict[str, _QueueFollowers] = {}

    async def find(self, queue: str, job_id: str) -> Job:
        """The job; raises `JobNotFound`."""
        job = await self.bullmq(queue).get_job(job_id)
        if job is None:
            raise JobNotFound(job_id, command="follow")
        return job

    def bullmq(self, name: str) -> Queue:
        """The queue, which must be a BullMQ queue."""
        found = self._app.get_queue(name)
        if not isinstance(found, Queue):
            raise InvalidOption("queue", f"{name} is not a BullMQ queue", "only these have progress")
        return found

    async def follow(self, queue: str, job_id: str) -> AsyncGenerator[JobUpdate, None]:
        """Yields the progress of a job whenever it changes, and at last its end."""
        job = await self.find(queue, job_id)
        followers = self._followers_of(queue)
        follower = followers.add(job_id)
        end = asyncio.create_task(_end_of(job), name=f"toril-follow-{job_id}")
        try:
            await followers.open()
            async for update in _updates(job, follower, end):
                yield update
        finally:
            end.cancel()
            await asyncio.wait([end])
            if followers.remove(job_id, follower) and self._by_queue.get(queue) is followers:
                del self._by_queue[queue]
                await followers.close()

    def _followers_of(self, queue: str) -> _QueueFollowers:
        found = self._by_queue.get(queue)
        if found is None:
            self._by_queue[queue] = found = _QueueFollowers(self._app, self.bullmq(queue))
        return found

    async def stream(
        self, queue: str, job_id: str, *, keep_alive: float = KEEP_ALIVE
    ) -> AsyncGenerator[bytes, None]:
        """The updates of a job as the body of a response of type `text/event-stream`."""
        async with (
            contextlib.aclosing(self.follow(queue, job_id)) as updates,
            contextlib.aclosing(_with_pauses(updates, keep_alive)) as lines,
        ):
            async for update in lines:
                yield b": keep-alive\n\n" if update is None else update.to_sse()


async def _updates(job: Job, follower: _Follower, end: asyncio.Task[JobUpdate]) -> AsyncIterator[JobUpdate]:
    """The progress that is stored, that of the events, the last one that was stored, and the end."""
    await _refreshed(job)
    last = job.progress
    if last:
        yield JobUpdate("progress", last)
    while not end.done():
        for progress in await _next_progress(follower, end):
            if progress != last:
                last = progress
                yield JobUpdate("progress", progress)
    await _refreshed(job)  # the reader of progress may be behind the one of ends
    if job.progress and job.progress != last:
        yield JobUpdate("progress", job.progress)
    yield end.result()


async def _next_progress(follower: _Follower, end: asyncio.Task[JobUpdate]) -> list[object]:
    """Waits for progress or the end; empty if there is no new progress."""
    arrival = asyncio.ensure_future(follower.take())
    try:
        await asyncio.wait([arrival, end], return_when=asyncio.FIRST_COMPLETED)
        return arrival.result() if arrival.done() else []
    finally:
        arrival.cancel()
        await asyncio.wait([arrival])


async def _refreshed(job: Job) -> None:
    with contextlib.suppress(JobNotFound):  # removed: the wait for its end finds it out, too
        await job.refresh()


async def _end_of(job: Job) -> JobUpdate:
    try:
        return JobUpdate("completed", await job.wait_until_finished())
    except JobFailed as error:
        return JobUpdate("failed", error.reason)
    except JobNotFound:
        return JobUpdate("removed")


async def _with_pauses(
    updates: AsyncGenerator[JobUpdate, None], pause: float
) -> AsyncGenerator[JobUpdate | None, None]:
    """The updates, and None whenever there was none for `pause` seconds."""
    coming: asyncio.Future[JobUpdate] = asyncio.ensure_future(anext(updates))
    try:
        while True:
            await asyncio.wait([coming], timeout=pause)
            if not coming.done():
                yield None
                continue
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
            coming = asyncio.ensure_future(anext(updates))
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        if not coming.cancelled():
            coming.exception()
