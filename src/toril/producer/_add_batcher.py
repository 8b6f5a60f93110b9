"""The add batcher: jobs that are added at the same time are sent in one call.

Guarantee: jobs reach the queue in the order in which they were submitted, as long as no connection is lost under two
calls at once. Each job has its own reply. A call whose reply was lost is repeated under the same entry of its ledger,
so no job is added twice. A single job does not wait for others. Jobs of one `submit`, up to MAX_JOBS and MAX_BYTES, are
one call.

Jobs submitted in one turn of the event loop are sent at its end; many of them in two calls, so that the server works on
one while the other is prepared. What is submitted while two calls are in flight is sent with the next call. After
SINGLE_CALLS calls with one job each, a job is sent in the turn in which it is submitted.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Final

from toril.commands.add import Added, Ledger, add_jobs
from toril.errors import Closed, TorilError
from toril.producer._connection import QueueConnection
from toril.producer.job_builder import PreparedJob

# Calls in flight. Two: while the server works on one, the next is prepared.
MAX_CALLS: Final = 2
# One call takes less than about 10 ms of the server's time, which other clients hardly notice.
MAX_JOBS: Final = 500
MAX_BYTES: Final = 1_000_000
# From this number of jobs on, two calls of half the size are faster than one call.
MIN_JOBS_TO_SPLIT: Final = 8
# After this number of calls with one job each, the next job is sent without waiting for more.
SINGLE_CALLS: Final = 2


class PendingAdd:
    """The jobs of one `submit` and their replies. They may be sent in several calls."""

    __slots__ = ("future", "jobs", "missing", "replies", "sent")

    def __init__(self, jobs: Sequence[PreparedJob], future: asyncio.Future[list[Added]]) -> None:
        self.jobs = jobs
        self.future = future
        self.replies: list[Added] = [""] * len(jobs)
        self.sent = 0
        self.missing = len(jobs)

    def take(self, at: int, reply: Added) -> None:
        """Takes the reply to the job at this position."""
        self.replies[at] = reply
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(self.replies)

    def fail_unsent(self, error: TorilError) -> None:
        """Takes an error as the reply to all jobs that no call has sent."""
        for at in range(self.sent, len(self.jobs)):
            self.take(at, error)


Batch = list[tuple[PendingAdd, int]]


class CallLedger:
    """A ledger of this producer, in which one call at a time has its entry."""

    __slots__ = ("_key", "_sequence")

    def __init__(self, key: str) -> None:
        self._key = key
        self._sequence = 0

    def next_entry(self) -> Ledger:
        self._sequence += 1
        return Ledger(self._key, str(self._sequence))


class AddBatcher:
    """Adds jobs to one queue."""

    def __init__(self, connection: QueueConnection) -> None:
        self._queue = connection
        self._transport = connection.transport
        self._keys = keys = connection.keys
        producer = uuid.uuid4().hex
        # Those that no call in flight uses.
        self._ledgers = [CallLedger(keys.toril(f"ledger:{producer}:{number}")) for number in range(MAX_CALLS)]
        self._pending: deque[PendingAdd] = deque()
        self._unsent = 0  # jobs in them that no call has sent yet
        self._opening: asyncio.Task[int] | None = None
        self._flush_planned = False
        self._connection: object = None  # the connection that the last call used
        self._single_calls = 0  # calls in a row that had one job
        self._idle = asyncio.Event()  # nothing is left to send, and no call is in flight
        self._closed = False

    def submit(self, jobs: Sequence[PreparedJob]) -> asyncio.Future[list[Added]]:
        """Sends jobs; the future gets the reply to each of them, in order. Cancelling it drops the unsent ones."""
        if self._closed:
            raise Closed("the queue was closed; make a new Queue")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Added]] = loop.create_future()
        if not jobs:
            future.set_result([])
            return future
        self._pending.append(PendingAdd(jobs, future))
        self._unsent += len(jobs)
        if self._flush_planned or not self._ledgers:
            return future
        if self._single_calls >= SINGLE_CALLS and len(self._ledgers) == MAX_CALLS:
            self._flush()
        else:
            self._flush_planned = True
            loop.call_soon(self._flush)  # after all that is submitted in this turn of the loop
        return future

    def _flush(self) -> None:
        """Sends what was submitted, in as many calls as there may be."""
        self._flush_planned = False
        while self._pending and self._ledgers and self._opening is None and self._keeps_order():
            now_ms = self._queue.time_if_open()
            if now_ms is None:
                self._opening = asyncio.create_task(self._queue.ensure_open(), name="toril-open")
                self._opening.add_done_callback(functools.partial(self._opened, len(self._pending)))
            elif batch := self._next_batch():
                self._send(batch, now_ms)
        if not self._pending and len(self._ledgers) == MAX_CALLS:
            self._idle.set()

    def _keeps_order(self) -> bool:
        """Whether a call sent now arrives after those in flight: it does on the same connection."""
        if len(self._ledgers) == MAX_CALLS:
            return True
        return self._connection is not None and self._open_connection() is self._connection

    def _open_connection(self) -> object | None:
        return self._transport.open_connection(self._keys.meta)

    def _opened(self, count: int, task: asyncio.Task[int]) -> None:
        """Continues when the queue is open; if opening failed, the first `count` submits fail."""
        self._opening = None
        error = (
            Closed("adding was interrupted: the job may be added or not; with a job_id it can be added again")
            if task.cancelled()
            else task.exception()
        )
        if error is not None:
            for _ in range(count):
                pending = self._pending.popleft()
                self._unsent -= len(pending.jobs) - pending.sent
                pending.fail_unsent(_as_toril_error(error))
        self._flush()

    def _next_batch(self) -> Batch:
        batch: Batch = []
        size, enough = 0, self._enough_jobs()
        while self._pending:
            pending = self._pending[0]
            if pending.future.cancelled():  # Jobs that were sent are added; the rest is not sent.
                self._unsent -= len(pending.jobs) - pending.sent
                self._pending.popleft()
                continue
            jobs = pending.jobs[pending.sent : pending.sent + MAX_JOBS]
            if batch and (len(batch) >= enough or len(batch) + len(jobs) > MAX_JOBS):
                break
            taken, size = _fitting(jobs, size)
            if taken < len(jobs) and batch:
                break
            batch += [(pending, at) for at in range(pending.sent, pending.sent + taken)]
            self._unsent -= taken
            pending.sent += taken
            if pending.sent < len(pending.jobs):
                break
            self._pending.popleft()
        return batch

    def _enough_jobs(self) -> int:
        """From how many jobs on the next call takes no further submit; it takes no part of one to reach it."""
        if len(self._ledgers) == MAX_CALLS and self._unsent >= MIN_JOBS_TO_SPLIT:
            return min(MAX_JOBS, -(-self._unsent // 2))
        return MAX_JOBS

    def _send(self, batch: Batch, now_ms: int) -> None:
        is_single = len(batch) == 1 and len(self._ledgers) == MAX_CALLS
        self._single_calls = self._single_calls + 1 if is_single else 0
        ledger = self._ledgers.pop()
        self._connection = self._open_connection()
        try:
            jobs = [pending.jobs[at].to_add(now_ms) for pending, at in batch]
            command = add_jobs(self._keys, jobs, ledger.next_entry())
            self._transport.submit(command, functools.partial(self._replied, ledger, batch))
        except Exception as error:  # noqa: BLE001  # the callers get it
            self._finish(ledger, batch, _as_toril_error(error))

    def _replied(self, ledger: CallLedger, batch: Batch, replies: list[Added] | TorilError) -> None:
        self._finish(ledger, batch, replies)
        self._flush()

    def _finish(self, ledger: CallLedger, batch: Batch, replies: list[Added] | TorilError) -> None:
        self._ledgers.append(ledger)
        each = [replies] * len(batch) if isinstance(replies, TorilError) else replies
        for (pending, at), reply in zip(batch, each, strict=True):
            pending.take(at, reply)

    async def close(self) -> None:
        """Takes no more jobs, and returns when those that were submitted have their replies."""
        self._closed = True
        while self._pending or len(self._ledgers) < MAX_CALLS:
            self._idle.clear()
            await self._idle.wait()


def _fitting(jobs: Sequence[PreparedJob], size: int) -> tuple[int, int]:
    """Returns how many of these jobs fit into a call that has `size` bytes, at least one if it is empty, and its new
    size."""
    for taken, job in enumerate(jobs):
        size += len(job.data)
        if size > MAX_BYTES and (taken or size > len(job.data)):
            return taken, size
    return len(jobs), size


def _as_toril_error(error: BaseException) -> TorilError:
    if isinstance(error, TorilError):
        return error
    failed = Closed(f"adding was interrupted: {error!r}")
    failed.__cause__ = error
    return failed
