"""How a worker ends: in its own time, in a hurry because its program fails, or with the event loop around it.

Guarantee: each step has an end, whatever handlers and server do. Jobs in hand that do not finish in time go back in the
order in which they were taken, their attempt not counted; a server that does not answer holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toril.errors import StoppedByWorker
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.worker._executors import Handler
from toril.worker._services import WorkerServices, WorkerState

# A server that has not answered for this long is not waited for by a worker with nothing in hand: others want it to end
# within a second. What such a server still gives us, it gives to nobody: that is recovered like a dead worker's.
SILENT_SECONDS = 0.4
# Jobs that go back wait for each other no longer than this; later ones go back one by one.
TOGETHER_SECONDS = 0.5
# Saying that the worker has stopped must not hold up its end: the report would vanish by itself, only later.
LAST_REPORT_SECONDS = 0.5
# The thread that keeps the locks ends as soon as its connection is closed, unless it is just opening one.
KEEPER_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Haste:
    """How long is left when the time of the handlers is over."""

    hand_back: float  # for handing jobs back to a server that may be slow or away
    last: float  # then handlers that do not end are left behind, and this long is left for their jobs


ORDERLY = Haste(hand_back=5.0, last=1.0)
HASTY = Haste(hand_back=1.0, last=0.5)
# Handlers of a program that fails may finish within this time: the whole program is to end within five seconds.
FAILING_SECONDS = 2.0


class WorkerEnding(WorkerServices):
    """The steps by which a worker ends."""

    def __init__(
        self,
        queue: str,
        handler: Handler | Mapping[str, Handler],
        options: WorkerOptions,
        policy: ConnectionPolicy,
    ) -> None:
        super().__init__(queue, handler, options, policy)
        self._out_of_patience = asyncio.Event()  # what still runs goes back now
        self.left_behind = 0  # handlers that refused to be cancelled; their jobs are back in the queue

    async def _wind_down(self, limit: float, haste: Haste) -> None:
        connected = self.state is not WorkerState.DISCONNECTED
        self._set_state(WorkerState.SHUTTING_DOWN)
        self._fetch_loop.hold()
        self._reconnector.stop()
        async with self._hopeless() as hopeless:
            woken = await _ended(self._fetch_loop.stop_waiting(), within=SILENT_SECONDS)
            patience = asyncio.ensure_future(self._out_of_patience.wait())
            finished = await _ended(self._fetch_loop.drained(), before=(patience, hopeless))
            patience.cancel()
            if self._reconnector.gave_up:
                await self._abandon()
            elif not finished:
                await self._send_back(haste, hopeless, late=limit > 0)
            answers = connected and woken and not hopeless.done()
        if answers:
            await _ended(asyncio.to_thread(self._keeper.retire), within=LAST_REPORT_SECONDS)
        await self._close_all()
        self._metrics.set_active_workers(self.label, self.id, False)

    @contextlib.asynccontextmanager
    async def _hopeless(self) -> AsyncIterator[asyncio.Task[None]]:
        """A task that ends when nothing is in hand and calls in flight had their time: they are not worth a wait."""

        async def look() -> None:
            await asyncio.sleep(SILENT_SECONDS)
            while self._fetch_loop.in_hand():  # noqa: ASYNC110  # a worker that ends is not worth an event for each job
                await asyncio.sleep(SILENT_SECONDS / 4)

        looking = asyncio.create_task(look(), name="toril-hopeless")
        try:
            yield looking
        finally:
            looking.cancel()

    async def _abandon(self) -> None:
        """There is nobody to hand jobs back to: their locks lapse, and another worker recovers them."""
        self._fetch_loop.end()
        self._log.abandoned(sorted({delivery.id for delivery in self._fetch_loop.in_hand()}))
        self._runner.cancel_all(
            lambda job_id: StoppedByWorker(f"Redis stays away; job {job_id} is abandoned")
        )
        await self._runner.wait_cancelled(ORDERLY.last)
        self.left_behind = len(self._runner.attempts)
        self._runner.give_up_all()

    async def _send_back(self, haste: Haste, hopeless: asyncio.Task[None], *, late: bool) -> None:
        if late and self._runner.attempts:
            self._log.trouble(TimeoutError(f"{len(self._runner.attempts)} jobs did not finish in time"))
        self._fetch_loop.begin_returning()
        self._runner.cancel_all(lambda job_id: StoppedByWorker(f"the worker stops; job {job_id} goes back"))
        if await _ended(self._fetch_loop.drained(), before=(hopeless,), within=TOGETHER_SECONDS):
            return
        self._fetch_loop.return_now()
        if await _ended(self._fetch_loop.drained(), before=(hopeless,), within=haste.hand_back):
            return
        self.left_behind = len(self._runner.attempts)
        self._runner.give_up_all()
        self._fetch_loop.return_now()
        await _ended(self._fetch_loop.drained(), before=(hopeless,), within=haste.last)

    async def _close_all(self) -> None:
        # Connections first: a call to a server that is silent must not hold up the end.
        self._fetch_loop.end()
        self._reconnector.end()
        await self._source.close()
        await self._release()
        await self._fetch_loop.close()
        await self._sweeper.stop()
        await asyncio.to_thread(self._keeper.stop, KEEPER_SECONDS)
        await self._runner.close()
        for executor in self._executors.values():
            await executor.close()

    async def _torn_down(self) -> None:
        """The event loop is being ended around us, and waits for us: jobs in hand go back if the server answers."""
        self._set_state(WorkerState.SHUTTING_DOWN)
        self._fetch_loop.hold()
        self._reconnector.end()
        self._keeper.leave()
        if not self._fetch_loop.idle:
            async with self._hopeless() as hopeless:
                await self._send_back(HASTY, hopeless, late=False)
        self._fetch_loop.end()
        for executor in self._executors.values():
            executor.kill()
        await _ended(self._source.close(), within=HASTY.last)
        await self._release()
        self._set_state(WorkerState.STOPPED)


async def _ended(
    step: Coroutine[Any, Any, Any], *, before: Sequence[asyncio.Future[Any]] = (), within: float | None = None
) -> bool:
    """Whether a step ended in time. One that did not is cancelled, and not waited for: the server may be silent."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait({task, *before}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        task.cancel()
