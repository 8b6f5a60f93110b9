"""Waiting for jobs to end.

Guarantee: an end is never missed: a waiter first subscribes to the events and then reads whether the job has ended
already. One reader of the events serves all waiters of a queue; it starts with the first and stops some time after the
last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from toril.commands.read import Finished, finished_by_event, is_finished
from toril.errors import Closed, TorilError
from toril.events._stream import EventStream, Gap
from toril.protocol.event import Event
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport
from toril.transport.waiting import result_of, succeeded

logger = logging.getLogger("toril.events")

# How long the reader runs after its last waiter, so that waiting for one job after another needs one reader.
_LINGER_SECONDS = 5.0
# A silence of this length counts: a little less, because two clocks differ.
_SILENCE_SECONDS = 0.9 * _LINGER_SECONDS


class FinishWaiter:
    """Waits for jobs to end."""

    __slots__ = ("_closed", "_keys", "_opening", "_stream", "_tasks", "_transport", "_waiters")

    def __init__(self, transport: AsyncTransport, keys: QueueKeys) -> None:
        self._transport = transport
        self._keys = keys
        self._waiters: dict[str, set[asyncio.Future[Finished]]] = {}
        self._stream: EventStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def wait(self, job_id: str, timeout: float | None = None) -> Finished:
        """Returns how a job ended; raises `TimeoutError` when it did not in time."""
        if self._closed:
            raise Closed("the queue was closed; make a new Queue to wait for jobs")
        future: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, set()).add(future)
        try:
            async with asyncio.timeout(timeout):
                await self._start()
                finish = await self._transport.run(is_finished(self._keys, job_id))
                return finish if finish.state != "pending" else await future
        except TimeoutError:
            raise TimeoutError(f"job {job_id} did not finish within {timeout:g} s") from None
        finally:
            self._remove(job_id, future)

    def _remove(self, job_id: str, future: asyncio.Future[Finished]) -> None:
        future.cancel()
        waiters = self._waiters.get(job_id)
        if waiters is not None:
            waiters.discard(future)
            if not waiters:
                del self._waiters[job_id]

    async def _start(self) -> None:
        if self._stream is None:
            self._stream = EventStream(
                self._transport, self._keys, "$", block=_LINGER_SECONDS, derive_retries=False
            )
            self._opening = asyncio.create_task(self._open(self._stream), name="toril-finishes-open")
            self._opening.add_done_callback(succeeded)  # retrieves its error, in case no waiter does
        if self._opening is not None:
            # Many waiters share one opening: when one is cancelled, the opening goes on.
            await result_of(self._opening)

    async def _open(self, stream: EventStream) -> None:
        try:
            await stream.open()
        except TorilError:
            self._stream = None
            raise
        task = asyncio.create_task(self._watch(stream), name=f"toril-finishes-{self._keys.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("waiting for jobs of %s ended with an error", self._keys.name, exc_info=error)

    async def _watch(self, stream: EventStream) -> None:
        now = asyncio.get_running_loop().time
        last_event = last_waiter = now()
        try:
            while not stream.closed:
                batch = await stream.next_batch()
                self._resolve(batch)
                if self._waiters:
                    last_waiter = now()
                elif now() - last_waiter >= _SILENCE_SECONDS:
                    return
                is_silent = not batch and now() - last_event >= _SILENCE_SECONDS
                if is_silent or any(isinstance(one, Gap) for one in batch):
                    await self._check_all()
                if batch or is_silent:
                    last_event = now()
        except BaseException:
            self._fail_waiters("the events of the queue cannot be read")
            raise
        finally:
            self._stream = self._opening = None
            await stream.close()

    def _fail_waiters(self, why: str) -> None:
        """Raises `Closed` in all waiters, because the events are not read any more."""
        for future in [future for waiters in self._waiters.values() for future in waiters]:
            if not future.done():
                future.set_exception(Closed(why))

    def _resolve(self, batch: Sequence[Event | Gap]) -> None:
        for event in batch:
            if event.job_id in self._waiters and isinstance(event, Event):
                self._set_result(event.job_id, _finish(event))

    def _set_result(self, job_id: str, finish: Finished | None) -> None:
        if finish is None or finish.state == "pending":
            return
        for future in self._waiters.get(job_id, ()):
            if not future.done():
                future.set_result(finish)

    async def _check_all(self) -> None:
        """Reads the state of all jobs, after a gap or a long silence: events may have been lost."""
        job_ids = list(self._waiters)
        found = await self._transport.run_many([is_finished(self._keys, job_id) for job_id in job_ids])
        for job_id, finish in zip(job_ids, found, strict=True):
            if isinstance(finish, Finished):
                self._set_result(job_id, finish)

    async def close(self) -> None:
        """Stops the reader; waiters get `Closed`."""
        self._closed = True
        self._fail_waiters("the queue was closed while a job was waited for")
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._stream is not None:
            await self._stream.close()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _finish(event: Event) -> Finished | None:
    return finished_by_event(
        event.job_id or "", {**event.fields, "event": event.type, "jobId": event.job_id or ""}
    )
