"""Settles outcomes and fetches jobs, in as few calls as the load allows.

Guarantee: never more handlers run than the concurrency; an outcome is submitted until the queue has accepted or refused
it; no call in flight is ever cancelled; at low load a job waits for no other; jobs that a stop returns to the queue are
fetched again in the order in which they were fetched.

Outcomes that arrive while a call is in flight are sent together in the next one, which fetches as many jobs as there is
capacity for. So batches grow with the load. At most two calls are in flight, each with half of the concurrency: the
server works on one half while the worker runs the other.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Generic

from toril.backends.base import Backend, D, Fetched
from toril.errors import Interrupted, RedisOutOfMemory, RedisUnavailable, ReplyLost, TorilError
from toril.protocol.outcome import Requeued
from toril.protocol.worker_options import WorkerOptions
from toril.worker._attempt import FinishedAttempt
from toril.worker._attempt_runner import AttemptRunner
from toril.worker._connection import Connection
from toril.worker._observer import WorkerObserver
from toril.worker._return_order import ReturnOrder

# One for the server to work on, one for the worker.
MAX_IN_FLIGHT = 2
# Fewer outcomes get no call of their own: the call would cost more than the time that it saves.
SMALLEST_BATCH = 4
# Keeps one call under 5 ms, which other clients of the server hardly notice; larger ones were slower, too.
MAX_BATCH = 100
# A server that refuses fetches (memory limit) is asked again after this time.
REFUSED_PAUSE = 1.0
# A wait that has not reached the server yet cannot be ended there: it is tried again after this time.
WAKE_AGAIN = 0.005


class FetchLoop(Generic[D]):
    """Moves jobs between a backend and an attempt runner."""

    def __init__(
        self,
        backend: Backend[D],
        runner: AttemptRunner[D],
        connection: Connection[D],
        observer: WorkerObserver[D],
        options: WorkerOptions,
    ) -> None:
        self._backend = backend
        self._runner = runner
        self._connection = connection
        self._observer = observer
        self._set_concurrency(options.concurrency)
        self._drain_delay = float(options.drain_delay)
        # By delivery, not by job: one whose lock was lost and that was fetched again has two for a while.
        self.running: dict[int, D] = {}  # jobs whose handlers run
        self.settling: dict[int, D] = {}  # jobs that ended, and whose outcome is not accepted yet
        self._finished: list[FinishedAttempt[D]] = []
        self._return_order: ReturnOrder[D] | None = None  # of a worker that stops
        self._requested = 0  # jobs that calls in flight may return
        self._in_flight = 0
        self._fetching = False
        self._may_have_jobs = True  # whether the queue may have jobs for us
        self._has_marker = False  # a wait has ended, and no fetch has used its marker
        self._disconnected = False
        # A limit that is removed meanwhile is noticed after this time.
        self._longest_limit = float(options.maximum_rate_limit_delay)
        self._limited = False  # a rate limit, or a full server: no fetch until the timer
        self._ended = False
        self._flush_planned = False
        self._waiter: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._loop = asyncio.get_running_loop()
        self._recoveries: set[asyncio.Task[None]] = set()
        runner.connect(self)

    # --- start and stop -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to fetch jobs."""
        self._fetching = True
        self._may_have_jobs = True
        self._plan_flush()

    def stop_fetching(self) -> None:
        """Fetches no more jobs; those that run are settled."""
        self._fetching = False
        self._cancel_timer()

    def pause(self, seconds: float) -> None:
        """Fetches no jobs for so long; running ones continue."""
        if self._fetching and not self._limited:
            self._cancel_timer()
            self._limited = True
            self._timer = self._loop.call_later(seconds, self._fetch_again)

    async def stop_waiting(self) -> None:
        """Ends a blocking wait; no job is lost by it."""
        waiter = self._waiter
        while waiter is not None and not waiter.done():
            await self._backend.wake()
            await asyncio.wait({waiter}, timeout=WAKE_AGAIN)
        if self._has_marker and not self._fetching:
            await self._release_marker()

    async def wait_drained(self) -> None:
        """Returns when nothing runs and every outcome is settled."""
        await self._drained.wait()

    def end(self) -> None:
        """Begins no more calls, and ignores the replies of those in flight."""
        self._ended = True

    async def stop(self) -> None:
        """Returns when all tasks have ended; the backend must be closed before."""
        self.end()
        left = {*self._recoveries, *([self._waiter] if self._waiter is not None else [])}
        if left:
            await asyncio.wait(left)

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._set_concurrency(concurrency)
        if self._fetching:
            self._may_have_jobs = True
            self._plan_flush()

    def _set_concurrency(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._batch_size = _batch_size(concurrency)

    @property
    def is_fetching(self) -> bool:
        """Whether the worker has started and does not stop."""
        return self._fetching and not self._ended

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and the last fetch returned nothing."""
        return not self.running and not self.settling and not self._may_have_jobs and self._in_flight == 0

    @property
    def is_drained(self) -> bool:
        """Nothing runs, everything is settled, and no call is in flight that may return jobs."""
        return self._drained.is_set()

    def deliveries(self) -> list[D]:
        """Jobs whose locks must be renewed: those that run, and those whose outcome is not accepted yet."""
        return [*self.settling.values(), *self.running.values()]  # oldest first

    # --- outcomes -------------------------------------------------------------------------------------------

    def settle(self, finished: FinishedAttempt[D]) -> None:
        """A handler ended: its outcome is sent with the next call."""
        delivery = finished.delivery
        self.running.pop(id(delivery), None)
        self.settling[id(delivery)] = delivery
        if self._return_order is not None and isinstance(finished.outcome, Requeued):
            self._return_order.add(finished)
            self._plan_flush()
            return
        self._finished.append(finished)
        if self.running and len(self._finished) < self._batch_size:
            if not self._flush_planned:
                self._plan_flush()
        else:
            self._flush()  # no other outcome joins this batch: it is sent in this turn of the loop

    def begin_returning(self) -> None:
        """From now on, requeued jobs are returned together, in the order in which they were fetched."""
        if self._return_order is None:
            self._return_order = ReturnOrder(self.running)

    def return_now(self) -> None:
        """Returns requeued jobs without waiting for the others."""
        if self._return_order is not None and self._return_order.waiting:
            self._finished += self._return_order.take()
            self._plan_flush()

    # --- calls ----------------------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            # In the next turn of the loop: all that ends in this turn goes in one batch.
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _capacity(self) -> int:
        if not self._fetching or self._limited:
            return 0
        return max(0, min(self._concurrency - len(self.running) - self._requested, MAX_BATCH))

    def _flush(self) -> None:
        self._flush_planned = False
        if self._return_order is not None and not self.running and not self._requested:
            self.return_now()
        self._note_drained()
        # Jobs that return in their order go in one call after the other.
        most = MAX_IN_FLIGHT if self._return_order is None else 1
        if self._ended or self._disconnected or self._in_flight >= most:
            return
        capacity = self._capacity()
        if self._finished or (capacity and self._may_have_jobs):
            self._send(capacity)
        elif capacity and not self._in_flight:
            self._wait_for_jobs()

    def _send(self, capacity: int) -> None:
        batch, self._finished = self._finished[:MAX_BATCH], self._finished[MAX_BATCH:]
        self._in_flight += 1
        self._requested += capacity
        self._has_marker = self._has_marker and not capacity
        self._drained.clear()
        on_reply = functools.partial(self._replied, batch, capacity)
        try:
            self._backend.submit(batch, capacity, on_reply)
        except Exception as error:  # noqa: BLE001  # a call that cannot be made must not end the worker
            on_reply(error)

    def _replied(self, batch: list[FinishedAttempt[D]], capacity: int, reply: Fetched[D] | Exception) -> None:
        if self._ended:
            return
        self._in_flight -= 1
        self._requested -= capacity
        if isinstance(reply, Exception):
            self._finished[:0] = batch
            self._note_drained()  # with nothing running, a stop need not wait for the server
            self._failed(reply)
            return
        try:
            self._connection.answered()
            self._accept(batch, reply, capacity)
        except Exception as error:  # noqa: BLE001  # the connection that calls us must not fail
            self._observer.error(error)
        self._flush()

    def _failed(self, error: Exception) -> None:
        if isinstance(
            error, Interrupted
        ):  # interrupted: the event loop is ending, and outcomes are sent again
            self._loop.call_later(WAKE_AGAIN, self._plan_flush)
            return
        task = asyncio.create_task(self._recover_from(error), name="toril-recover")
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)

    async def _recover_from(self, error: Exception) -> None:
        if not isinstance(error, RedisUnavailable):
            self._report(error)
        await self._recover(error if isinstance(error, TorilError) else RedisUnavailable(str(error)))
        self._plan_flush()

    def _accept(self, batch: list[FinishedAttempt[D]], fetched: Fetched[D], capacity: int) -> None:
        for finished in batch:
            self.settling.pop(id(finished.delivery), None)
        deliveries = fetched.deliveries
        for delivery in deliveries:
            self.running[id(delivery)] = delivery
        try:
            if batch:
                self._note_settled(batch, fetched)
            if capacity:
                self._note_fetched(fetched, capacity)
        finally:
            # Whatever is raised above. Last: a job that was fetched alone may be settled when this returns.
            alone = len(deliveries) == 1
            for delivery in deliveries:
                self._runner.start(delivery, alone)

    def _note_settled(self, batch: list[FinishedAttempt[D]], fetched: Fetched[D]) -> None:
        errors = fetched.ack_errors
        try:
            accepted = self._accepted(batch, errors) if any(errors) else batch
            self._observer.settled(accepted, fetched.at_ms)
        except Exception as error:  # noqa: BLE001  # a collector or logger that raises must not stop the loop
            self._observer.error(error)

    def _accepted(
        self, batch: list[FinishedAttempt[D]], ack_errors: Sequence[TorilError | None]
    ) -> list[FinishedAttempt[D]]:
        """Those that were accepted. The attempt of a refused one may continue; then its job is running again."""
        accepted: list[FinishedAttempt[D]] = []
        for finished, ack_error in zip(batch, ack_errors, strict=True):
            if ack_error is None:
                accepted.append(finished)
                continue
            try:
                if self._runner.refused(finished, ack_error):
                    self.running[id(finished.delivery)] = finished.delivery
            except Exception as error:  # noqa: BLE001  # a logger that raises must not lose the other outcomes
                self._observer.error(error)
        return accepted

    def _note_fetched(self, fetched: Fetched[D], capacity: int) -> None:
        """Decides whether, and when, to fetch again."""
        had_jobs = self._may_have_jobs
        self._may_have_jobs = not fetched.exhausted or len(fetched.deliveries) == capacity
        self._cancel_timer()
        pause = min(max(fetched.limited_for, 0.0), self._longest_limit)
        if fetched.refused is not None:
            self._observer.error(fetched.refused)
            pause = REFUSED_PAUSE
        # While fetches are limited, a marker must not wake the loop.
        self._limited = pause > 0
        due = pause or fetched.next_due_in
        if (self._limited or not self._may_have_jobs) and due is not None and self._fetching:
            self._timer = self._loop.call_later(max(due, 0.0), self._fetch_again)
        if had_jobs and not self._may_have_jobs and not self.running:
            self._observer.drained()

    def _fetch_again(self) -> None:
        self._timer = None
        self._limited = False
        self._may_have_jobs = True
        self._plan_flush()

    def _cancel_timer(self) -> None:
        self._limited = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self, error: BaseException) -> None:
        if not self._ended:
            self._observer.error(error)

    async def _recover(self, error: TorilError) -> None:
        if self._disconnected or self._ended:
            return  # the other call in flight does it, or the worker does not wait for the server any more
        self._disconnected = True
        try:
            if isinstance(error, RedisOutOfMemory):  # the server is reachable, and will have memory again
                await asyncio.sleep(REFUSED_PAUSE)
            else:
                await self._connection.lost(error)
        finally:
            self._disconnected = False
            self._may_have_jobs = True

    # --- waiting --------------------------------------------------------------------------------------------

    def _wait_for_jobs(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.create_task(self._wait(), name="toril-wait")

    async def _wait(self) -> None:
        started = time.monotonic()
        try:
            await self._backend.wait(self._drain_delay)
        except (RedisUnavailable, ReplyLost) as error:
            await self._recover(error)
        except Exception as error:  # noqa: BLE001  # see _send
            self._report(error)
            # An error that is raised at once must not become a tight loop.
            pause = 0.0 if self._ended else 1.0 - (time.monotonic() - started)
            await asyncio.sleep(max(0.0, pause))
        self._has_marker = True
        if self._capacity() == 0:
            await self._release_marker()
        self._may_have_jobs = True
        self._waiter = None
        self._flush()  # in this turn: a job on an idle worker should not wait for another one

    async def _release_marker(self) -> None:
        self._has_marker = False
        try:
            await self._backend.release_marker()
        except RedisUnavailable:
            return  # reported elsewhere; other workers look for jobs when the server is back
        except TorilError as error:  # other workers look for jobs when their own waits end
            self._report(error)

    def _note_drained(self) -> None:
        if not self.running and not self.settling and not self._finished and not self._in_flight:
            self._drained.set()


def _batch_size(concurrency: int) -> int:
    """Outcomes that are sent without waiting for others: one call must leave work for the other call in flight."""
    return min(max(SMALLEST_BATCH, concurrency // MAX_IN_FLIGHT), MAX_BATCH)
