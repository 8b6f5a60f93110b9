"""The intake: jobs that are added at the same time travel together.

Guarantee: jobs reach the queue in the order in which they were given; each has its own answer; a call whose reply was
lost is repeated under the same entry of its ledger, so that no job is added twice; a single job waits for nobody.

Group commit: what is given in one turn of the event loop goes out in one call, and what comes while two calls are in
flight goes out with the next. Each call in flight has a lane, a ledger of its own in which calls are numbered.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from toril.commands.add import Ledger, add_jobs
from toril.contract.errors import Closed, TorilError
from toril.contract.keys import QueueKeys
from toril.producer._drafts import Draft
from toril.store import AsyncStore

# Two: while the server works on one call, we prepare the next.
LANES: Final = 2
# One call stays under some 10 ms of the server's time, which other clients hardly notice.
MAX_JOBS: Final = 500
MAX_BYTES: Final = 1_000_000

Added = str | TorilError


class _Parcel:
    """Jobs of one caller, and where their answers go. A parcel may travel in several calls."""

    __slots__ = ("answers", "future", "jobs", "missing", "sent")

    def __init__(self, jobs: Sequence[Draft], future: asyncio.Future[list[Added]]) -> None:
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

    def break_off(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(Closed("adding was interrupted") if _is_cancel(error) else error)


def _is_cancel(error: BaseException) -> bool:
    return isinstance(error, (asyncio.CancelledError, StopIteration))


class Lane:
    """The ledger of one call at a time."""

    __slots__ = ("_key", "_sequence")

    def __init__(self, key: str) -> None:
        self._key = key
        self._sequence = 0

    def next_entry(self) -> Ledger:
        self._sequence += 1
        return Ledger(self._key, str(self._sequence))


class Intake:
    """Adds jobs to one queue."""

    def __init__(self, store: AsyncStore, keys: QueueKeys, prepare: Callable[[], Awaitable[int]]) -> None:
        self._store = store
        self._prepare = prepare  # makes sure that the queue is open, and tells the server's time
        self._keys = keys
        self._producer = uuid.uuid4().hex
        self._parcels: deque[_Parcel] = deque()
        self._lanes = [Lane(keys.toril(f"ledger:{self._producer}:{number}")) for number in range(LANES)]
        self._calls: set[asyncio.Task[None]] = set()
        self._starting = False  # a call is about to take what has been given
        self._closed = False

    async def add(self, jobs: Sequence[Draft]) -> list[Added]:
        """An id or an error for each job, in order."""
        if self._closed:
            raise Closed("the queue was closed")
        if not jobs:
            return []
        parcel = _Parcel(jobs, asyncio.get_running_loop().create_future())
        self._parcels.append(parcel)
        self._start()
        return await parcel.future

    def _start(self) -> None:
        if self._starting or not self._lanes:
            return
        self._starting = True
        call = asyncio.get_running_loop().create_task(self._send(), name="toril-add")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _send(self) -> None:
        """Sends what has been given, until nothing is left."""
        lane = self._lanes.pop()
        self._starting = False
        try:
            while batch := self._next_batch():
                if self._parcels:
                    self._start()
                await self._call(lane, batch)
        finally:
            self._lanes.append(lane)

    def _next_batch(self) -> list[tuple[_Parcel, int]]:
        batch: list[tuple[_Parcel, int]] = []
        size = 0
        while self._parcels and len(batch) < MAX_JOBS:
            parcel = self._parcels[0]
            if parcel.future.cancelled():  # What is on its way arrives; the rest is not sent.
                self._parcels.popleft()
                continue
            at = parcel.sent
            size += len(parcel.jobs[at].data)
            if batch and size > MAX_BYTES:
                break
            batch.append((parcel, at))
            parcel.sent += 1
            if parcel.sent == len(parcel.jobs):
                self._parcels.popleft()
        return batch

    async def _call(self, lane: Lane, batch: list[tuple[_Parcel, int]]) -> None:
        answers: list[Added] | TorilError
        try:
            now_ms = await self._prepare()
            jobs = [parcel.jobs[at].stamped(now_ms) for parcel, at in batch]
            answers = await self._store.run(add_jobs(self._keys, jobs, lane.next_entry()))
        except TorilError as error:
            answers = error
        except BaseException as error:
            for parcel, _ in batch:
                parcel.break_off(error)  # Whoever waits must not wait for ever, whatever went wrong here.
            raise
        for i, (parcel, at) in enumerate(batch):
            parcel.take(at, answers if isinstance(answers, TorilError) else answers[i])

    async def close(self) -> None:
        """Waits until what was given is sent; then takes no more."""
        self._closed = True
        while self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
