"""The intake: jobs that are added at the same time travel together.

Guarantee: jobs reach the queue in the order in which they were given, as long as no connection is lost under two calls
at once; each has its own answer; a call whose reply was lost is repeated under the same entry of its ledger, so that no
job is added twice; a single job waits for nobody; what one caller gives at once, up to MAX_JOBS and MAX_BYTES, is one
call and arrives as a whole.

Group commit: what is given in one turn of the event loop goes out at once, many jobs in two calls of which the server
does one while we prepare the other, and what comes while two calls are in flight goes out with the next. Where jobs
have come one by one, the next does not even wait for the turn to end. Each call in flight has a lane, a ledger of its
own in which calls are numbered.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from toril.commands.add import Added, Ledger, add_jobs
from toril.commands.command import Command
from toril.errors import Closed, TorilError
from toril.producer.job_builder import PreparedJob
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

# Two: while the server works on one call, we prepare the next.
LANES: Final = 2
# One call stays under some 10 ms of the server's time, which other clients hardly notice.
MAX_JOBS: Final = 500
MAX_BYTES: Final = 1_000_000
# From here on two calls of half the size are worth what a second call costs.
WORTH_HALVING: Final = 8
# After so many calls with one job each, the next job is not expected to have company: it does not wait for the turn.
SEEN_ALONE: Final = 2


class _PendingAdd:
    """Jobs of one caller, and where their answers go. A parcel may travel in several calls."""

    __slots__ = ("answers", "future", "jobs", "missing", "sent")

    def __init__(self, jobs: Sequence[PreparedJob], future: asyncio.Future[list[Added]]) -> None:
        self.jobs = jobs
        self.future = future
        self.answers: list[Added] = [""] * len(jobs)
        self.sent = 0
        self.missing = len(jobs)

    def take(self, at: int, answer: Added) -> None:
        self.answers[at] = answer
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(self.answers)


Batch = list[tuple[_PendingAdd, int]]


class Lane:
    """The ledger of one call at a time."""

    __slots__ = ("_key", "_sequence")

    def __init__(self, key: str) -> None:
        self._key = key
        self._sequence = 0

    def next_entry(self) -> Ledger:
        self._sequence += 1
        return Ledger(self._key, str(self._sequence))


def _fitting(jobs: Sequence[PreparedJob], size: int) -> tuple[int, int]:
    """How many of these jobs fit into a call that has `size` bytes already, and its size with them; one fits always."""
    for taken, job in enumerate(jobs):
        size += len(job.data)
        if size > MAX_BYTES and (taken or size > len(job.data)):
            return taken, size
    return len(jobs), size


class AddBatcher:
    """Adds jobs to one queue."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: QueueKeys,
        *,
        ready: Callable[[], int | None],
        prepare: Callable[[], Awaitable[int]],
    ) -> None:
        self._transport = transport
        self._ready = ready  # the server's time, if the queue is open and knows it
        self._prepare = prepare  # opens the queue if need be, and tells the server's time
        self._keys = keys
        producer = uuid.uuid4().hex
        self._lanes = [Lane(keys.toril(f"ledger:{producer}:{number}")) for number in range(LANES)]
        self._transfer_jobs: deque[_PendingAdd] = deque()
        self._unsent = 0  # jobs in them that no call has taken yet
        self._calls: set[asyncio.Task[None]] = set()
        self._planned = False  # what has been given is about to be sent
        self._way: object = None  # the connection that the last call without a task took
        self._alone = 0  # calls in a row that had one job
        self._quiet = asyncio.Event()  # nothing is left to send, and no call is in flight
        self._closed = False

    async def add(self, jobs: Sequence[PreparedJob]) -> list[Added]:
        """What became of each job, in order."""
        if self._closed:
            raise Closed("the queue was closed")
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        transfer_job = _PendingAdd(jobs, loop.create_future())
        self._transfer_jobs.append(transfer_job)
        self._unsent += len(jobs)
        if self._alone >= SEEN_ALONE and len(self._lanes) == LANES and not self._planned:
            self._flush()
        elif self._lanes and not self._planned:
            self._planned = True
            loop.call_soon(self._flush)  # after all that is given in this turn of the loop
        return await transfer_job.future

    def _flush(self) -> None:
        """Sends what has been given, as far as lanes are free."""
        self._planned = False
        while self._lanes and self._in_order() and (batch := self._next_batch()):
            self._alone = self._alone + 1 if len(batch) == 1 and len(self._lanes) == LANES else 0
            lane = self._lanes.pop()
            if not self._posted(lane, batch):
                call = asyncio.get_running_loop().create_task(self._call(lane, batch), name="toril-add")
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        if not self._transfer_jobs and len(self._lanes) == LANES:
            self._quiet.set()

    def _in_order(self) -> bool:
        """Whether a call that is sent now arrives after those in flight: not by another way than they went."""
        return len(self._lanes) == LANES or bool(self._calls) or self._transport.way is self._way

    def _next_batch(self) -> Batch:
        batch: Batch = []
        size, share = 0, self._share()
        while self._transfer_jobs:
            transfer_job = self._transfer_jobs[0]
            if transfer_job.future.cancelled():  # What is on its way arrives; the rest is not sent.
                self._unsent -= len(transfer_job.jobs) - transfer_job.sent
                self._transfer_jobs.popleft()
                continue
            jobs = transfer_job.jobs[transfer_job.sent : transfer_job.sent + MAX_JOBS]
            if batch and (len(batch) >= share or len(batch) + len(jobs) > MAX_JOBS):
                break
            taken, size = _fitting(jobs, size)
            if taken < len(jobs) and batch:
                break
            batch += [(transfer_job, at) for at in range(transfer_job.sent, transfer_job.sent + taken)]
            self._unsent -= taken
            transfer_job.sent += taken
            if transfer_job.sent < len(transfer_job.jobs):
                break
            self._transfer_jobs.popleft()
        return batch

    def _share(self) -> int:
        """With how many jobs the next call has enough; it takes no parcel in part for it."""
        if len(self._lanes) == LANES and self._unsent >= WORTH_HALVING:
            return min(MAX_JOBS, -(-self._unsent // 2))
        return MAX_JOBS

    def _posted(self, lane: Lane, batch: Batch) -> bool:
        """The common case, without a task: the queue is open, and no call has to wait for anything."""
        now_ms = self._ready()
        if now_ms is None or self._calls:
            return False
        try:
            command = self._command(lane, batch, now_ms)
        except Exception:  # noqa: BLE001  # a task meets the same error, and tells it to whoever waits
            return False
        self._way = self._transport.way
        self._transport.submit(command, functools.partial(self._answered, lane, batch))
        return True

    async def _call(self, lane: Lane, batch: Batch) -> None:
        try:
            now_ms = await self._prepare()
            answers: list[Added] | TorilError = await self._transport.run(self._command(lane, batch, now_ms))
        except TorilError as error:
            answers = error
        except BaseException as error:
            # Whoever waits must not wait for ever, whatever went wrong here.
            self._answered(lane, batch, Closed(f"adding was interrupted: {error!r}"))
            raise
        self._answered(lane, batch, answers)

    def _command(self, lane: Lane, batch: Batch, now_ms: int) -> Command[list[Added]]:
        jobs = [transfer_job.jobs[at].stamped(now_ms) for transfer_job, at in batch]
        return add_jobs(self._keys, jobs, lane.next_entry())

    def _answered(self, lane: Lane, batch: Batch, answers: list[Added] | TorilError) -> None:
        self._lanes.append(lane)
        if isinstance(answers, TorilError):
            for transfer_job, at in batch:
                transfer_job.take(at, answers)
        else:
            for (transfer_job, at), answer in zip(batch, answers, strict=True):
                transfer_job.take(at, answer)
        self._flush()

    async def close(self) -> None:
        """Waits until what was given is sent and answered; then takes no more."""
        self._closed = True
        while self._transfer_jobs or len(self._lanes) < LANES:
            self._quiet.clear()
            await self._quiet.wait()
        if self._calls:
            await asyncio.wait(self._calls)
