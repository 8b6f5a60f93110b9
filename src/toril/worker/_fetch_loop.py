"""The pump: hands back what is done and takes what is next, in as few calls as the load allows.

Guarantee: never more handlers run than the concurrency; an outcome is handed in until the queue has accepted or
refused it; no call in flight is ever cancelled; at low load a job waits for nobody; jobs that a stop gives back are
taken again in the order in which they were taken.

Group commit: outcomes that arrive while a call is in flight travel together in the next one, which takes as many new
jobs as there is room for. Batches grow with the load by themselves. At most two calls are in flight, each with half of
what the concurrency allows: while the server works on one half, we work on the other.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from toril.backends.base import Fetched, FinishedJob, Source
from toril.errors import RedisOutOfMemory, RedisUnavailable, ReplyLost, TorilError
from toril.protocol.outcome import Requeued

# Two: one for the server to work on, one for us.
MAX_IN_FLIGHT = 2
# Fewer outcomes are not worth a call of their own: the call would cost more than the time that it saves.
SMALLEST_SHARE = 4
# Keeps one call under 5 ms, which other clients of the server hardly notice; larger ones were slower, too.
MAX_BATCH = 100
# A server that refuses pickups (memory limit) is asked again after this time.
REFUSED_PAUSE = 1.0
# A wait that has not reached the server yet cannot be ended there: it is tried again after this time.
WAKE_AGAIN = 0.005


class FetchLoop:
    """Moves jobs between a source and whoever runs them."""

    def __init__(
        self,
        source: Source,
        *,
        concurrency: int,
        drain_delay: float,
        run: Callable[[Any, bool], None],
        on_ack_error: Callable[[FinishedJob, TorilError], bool],
        on_settled: Callable[[Sequence[FinishedJob], int], Any],
        on_disconnect: Callable[[TorilError], Awaitable[None]],
        on_error: Callable[[BaseException], Any],
        on_drained: Callable[[], Any],
        on_answer: Callable[[], Any],
    ) -> None:
        self._source = source
        self._concurrency = concurrency
        self._share = _share(concurrency)
        self._drain_delay = drain_delay
        self._run = run
        self._on_verdict = on_ack_error
        self._on_settled = on_settled
        self._on_disconnect = on_disconnect
        self._on_error = on_error
        self._on_drained = on_drained
        self._on_answer = on_answer
        self._post = getattr(source, "post", None)  # a source may offer a shorter way
        # By delivery, not by job: one that was lost and came back to us is in hand twice for a while.
        self.running: dict[int, Any] = {}  # jobs whose handlers run
        self.settling: dict[int, Any] = {}  # jobs done here, not yet known to be done there
        self._settled: list[FinishedJob] = []
        self._returning: list[FinishedJob] | None = (
            None  # jobs of a worker that stops, until all of them are here
        )
        self._taken_as: dict[int, int] = {}  # their order, by delivery
        self._asked = 0  # jobs that calls in flight may bring
        self._in_flight = 0
        self._taking = False
        self._open = True  # whether the queue may have something for us
        self._unheard = (
            False  # a wait has ended, and nobody has asked for the work that it may have announced
        )
        self._disconnected = False
        self._held = False  # a rate limit, or a full server: no jobs until the timer
        self._closed = False
        self._flush_planned = False
        self._waiter: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[asyncio.Task[None]] = set()

    # --- what the worker says -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to take jobs."""
        self._loop = asyncio.get_running_loop()
        self._taking = True
        self._open = True
        self._plan_flush()

    def hold(self) -> None:
        """Takes no more jobs; those in hand go on."""
        self._taking = False
        self._cancel_timer()

    def rest(self, seconds: float) -> None:
        """Takes no jobs for so long; those in hand go on."""
        if self._taking and self._loop is not None and not self._held:
            self._cancel_timer()
            self._held = True
            self._timer = self._loop.call_later(seconds, self._reopen)

    async def stop_waiting(self) -> None:
        """Ends a blocking wait, losing nothing."""
        waiter = self._waiter
        while waiter is not None and not waiter.done():
            await self._source.wake()
            await asyncio.wait({waiter}, timeout=WAKE_AGAIN)
        if self._unheard and not self._taking:
            await self._decline()

    def set_concurrency(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._share = _share(concurrency)
        if self._taking:
            self._open = True
            self._plan_flush()

    @property
    def concurrency(self) -> int:
        return self._concurrency

    @property
    def is_idle(self) -> bool:
        """Nothing in hand, and the queue had nothing to give when last asked."""
        return not self.running and not self.settling and not self._open and self._in_flight == 0

    @property
    def idle(self) -> bool:
        """Nothing in hand, and no call in flight that might bring something."""
        return self._idle.is_set()

    def in_hand(self) -> list[Any]:
        """Jobs whose locks must be kept: those that run, and those whose end is not accepted yet."""
        return [*self.settling.values(), *self.running.values()]  # oldest first

    def settle(self, settled: FinishedJob) -> None:
        """A handler is done: its outcome goes with the next call."""
        delivery = settled.delivery
        self.running.pop(id(delivery), None)
        self.settling[id(delivery)] = delivery
        if self._returning is not None and isinstance(settled.outcome, Requeued):
            self._returning.append(settled)
            self._taken_as.setdefault(id(delivery), len(self._taken_as))
            self._plan_flush()
            return
        self._settled.append(settled)
        if self.running and len(self._settled) < self._share:
            if not self._flush_planned:
                self._plan_flush()
        else:
            self._flush()  # nobody else should join this batch: not even a turn of the loop is worth waiting for

    def begin_returning(self) -> None:
        """From now on jobs that go back wait for each other, so that they can go back in their order."""
        if self._returning is None:
            self._returning = []
            self._taken_as = {key: rank for rank, key in enumerate(self.running)}

    def return_now(self) -> None:
        """Gives back the jobs that are here without waiting for the others."""
        if self._returning:
            ranked = [(self._taken_as[id(one.delivery)], one) for one in self._returning]
            # The last one first: each goes where it is taken next.
            for rank, one in sorted(ranked, key=lambda pair: -pair[0]):
                reason = one.outcome.reason if isinstance(one.outcome, Requeued) else ""
                self._settled.append(FinishedJob(one.delivery, Requeued(reason, rank), one.memo))
            self._returning = []
            self._plan_flush()

    async def drained(self) -> None:
        """Returns when nothing runs and every outcome is delivered."""
        await self._idle.wait()

    def end(self) -> None:
        """Begins no more calls, and says nothing of those that the end of the source breaks off."""
        self._closed = True

    async def close(self) -> None:
        """Returns when the calls in flight have ended; the source must be closed by then."""
        self.end()
        left = {*self._calls, *([self._waiter] if self._waiter is not None else [])}
        if left:
            await asyncio.wait(left)

    # --- calls ----------------------------------------------------------------------------------------------

    def _plan_flush(self) -> None:
        if not self._flush_planned and self._loop is not None:
            # In the next round of the loop: all that ends in this round goes in one batch.
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _room(self) -> int:
        if not self._taking or self._held:
            return 0
        return max(0, min(self._concurrency - len(self.running) - self._asked, MAX_BATCH))

    def _flush(self) -> None:
        self._flush_planned = False
        if self._returning and not self.running and not self._asked:
            self.return_now()
        self._note_idle()
        # Jobs in their order go in one call after the other.
        most = MAX_IN_FLIGHT if self._returning is None else 1
        if self._closed or self._disconnected or self._in_flight >= most:
            return
        room = self._room()
        if self._settled or (room and self._open):
            self._send(room)
        elif room and not self._in_flight:
            self._wait_for_work()

    def _send(self, room: int) -> None:
        batch, self._settled = self._settled[:MAX_BATCH], self._settled[MAX_BATCH:]
        self._in_flight += 1
        self._asked += room
        self._unheard = self._unheard and not room
        self._idle.clear()
        if self._post is None or not self._post(batch, room, functools.partial(self._answered, batch, room)):
            self._spawn(self._exchange(batch, room))

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        call = asyncio.create_task(step, name="toril-exchange")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def _answered(self, batch: list[FinishedJob], room: int, answer: Fetched | TorilError) -> None:
        """The answer to a call that went the short way."""
        if self._closed:
            return
        self._in_flight -= 1
        self._asked -= room
        if isinstance(answer, TorilError):
            self._take_back(batch)
            self._spawn(self._after_trouble(answer))
            return
        try:
            self._on_answer()
            self._accept(batch, answer, room)
        except Exception as error:  # noqa: BLE001  # the connection that told us must not be the one to suffer
            self._on_error(error)
        self._flush()

    def _take_back(self, batch: list[FinishedJob]) -> None:
        self._settled[:0] = batch
        self._note_idle()  # with nothing in hand, nobody need wait for the server to come back

    async def _after_trouble(self, trouble: TorilError) -> None:
        if not isinstance(trouble, RedisUnavailable):
            self._complain(trouble)
        await self._recover(trouble)
        self._plan_flush()

    async def _exchange(self, batch: list[FinishedJob], room: int) -> None:
        trouble: TorilError | None = None
        try:
            taken = await self._source.exchange(batch, room)
        except (
            asyncio.CancelledError
        ):  # the event loop is being ended around us: what is done is handed in again
            self._in_flight -= 1
            self._asked -= room
            self._take_back(batch)
            self._plan_flush()
            raise
        except (RedisUnavailable, ReplyLost) as error:
            trouble = error
        except Exception as error:  # noqa: BLE001  # a call that fails in an unknown way must not end the worker
            self._complain(error)
            trouble = error if isinstance(error, TorilError) else RedisUnavailable(str(error))
        self._in_flight -= 1
        self._asked -= room
        if trouble is not None:
            self._take_back(batch)
            await self._recover(trouble)
        else:
            self._on_answer()
            self._accept(batch, taken, room)
        self._plan_flush()

    def _accept(self, batch: list[FinishedJob], taken: Fetched, room: int) -> None:
        for settled in batch:
            self.settling.pop(id(settled.delivery), None)
        deliveries = taken.deliveries
        for delivery in deliveries:
            self.running[id(delivery)] = delivery
        try:
            if batch:
                self._tell(batch, taken)
            if room:
                self._learn(taken, room)
        finally:
            # Whatever is raised above. Last: a job that comes alone may be done and handed in when this returns.
            for delivery in deliveries:
                self._run(delivery, len(deliveries) == 1)

    def _tell(self, batch: list[FinishedJob], taken: Fetched) -> None:
        ack_errors = taken.ack_errors
        try:
            self._on_settled(self._accepted(batch, ack_errors) if any(ack_errors) else batch, taken.at_ms)
        except Exception as error:  # noqa: BLE001  # a collector or logger that raises must not stop the pump
            self._on_error(error)

    def _accepted(
        self, batch: list[FinishedJob], ack_errors: Sequence[TorilError | None]
    ) -> list[FinishedJob]:
        """Those that were accepted. The attempt of a refused one may go on; then its job stays in hand."""
        accepted: list[FinishedJob] = []
        for settled, ack_error in zip(batch, ack_errors, strict=True):
            if ack_error is None:
                accepted.append(settled)
                continue
            try:
                if self._on_verdict(settled, ack_error):
                    self.running[id(settled.delivery)] = settled.delivery
            except Exception as error:  # noqa: BLE001  # a logger that raises must not cost the others their answers
                self._on_error(error)
        return accepted

    def _learn(self, taken: Fetched, room: int) -> None:
        """Whether, and when, it is worth asking again."""
        was_open = self._open
        self._open = not taken.exhausted or len(taken.deliveries) == room
        self._cancel_timer()
        pause = max(taken.limited_for, 0.0)
        if taken.refused is not None:
            self._on_error(taken.refused)
            pause = REFUSED_PAUSE
        # While we are held, a marker tells nothing that we may act on.
        self._held = pause > 0
        due = pause or taken.next_due_in
        if (self._held or not self._open) and due is not None and self._loop is not None and self._taking:
            self._timer = self._loop.call_later(max(due, 0.0), self._reopen)
        if was_open and not self._open and not self.running:
            self._on_drained()

    def _reopen(self) -> None:
        self._timer = None
        self._held = False
        self._open = True
        self._plan_flush()

    def _cancel_timer(self) -> None:
        self._held = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _complain(self, error: BaseException) -> None:
        if not self._closed:
            self._on_error(error)

    async def _recover(self, trouble: TorilError) -> None:
        if self._disconnected or self._closed:
            return  # the other call in flight is at it already, or nobody waits for the server any more
        self._disconnected = True
        try:
            if isinstance(trouble, RedisOutOfMemory):  # the server is there, and will have room again
                await asyncio.sleep(REFUSED_PAUSE)
            else:
                await self._on_disconnect(trouble)
        finally:
            self._disconnected = False
            self._open = True

    # --- waiting --------------------------------------------------------------------------------------------

    def _wait_for_work(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.create_task(self._wait(), name="toril-wait")

    async def _wait(self) -> None:
        started = time.monotonic()
        try:
            await self._source.wait(self._drain_delay)
        except (RedisUnavailable, ReplyLost) as error:
            await self._recover(error)
        except Exception as error:  # noqa: BLE001  # see _exchange
            self._complain(error)
            # An error that comes back at once must not become a tight loop.
            pause = 0.0 if self._closed else 1.0 - (time.monotonic() - started)
            await asyncio.sleep(max(0.0, pause))
        self._unheard = True
        if self._room() == 0:
            await self._decline()
        self._open = True
        self._waiter = None
        self._flush()  # at once: a job on an idle worker should not wait for a turn of the loop

    async def _decline(self) -> None:
        self._unheard = False
        try:
            await self._source.decline()
        except RedisUnavailable:
            return  # that the server is away is said elsewhere; others look for themselves when it is back
        except TorilError as error:  # others will look for themselves when their own waits end
            self._complain(error)

    def _note_idle(self) -> None:
        if not self.running and not self.settling and not self._settled and not self._in_flight:
            self._idle.set()


def _share(concurrency: int) -> int:
    """Outcomes that make a batch of their own: one call must leave work for the other, or they take turns."""
    return min(max(SMALLEST_SHARE, concurrency // MAX_IN_FLIGHT), MAX_BATCH)
