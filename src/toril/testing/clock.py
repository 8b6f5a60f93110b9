"""A clock for tests of delays, backoffs and schedules.

    clock = TestClock()
    await send.options(delay=3600).enqueue("a@b.c")
    await clock.advance(3600, queue)                # workers of this process run the job now

Guarantee: `advance` moves the time that this process sends to the scripts of all its connections. It does not move the
server's own clock: the times to live of locks, rate limits, deduplication keys and stored results pass as always, and
so do the time-outs of this process. Use it for BullMQ queues and one process.
"""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Self

from toril.errors import InvalidOption
from toril.producer import Queue
from toril.protocol.duration import Duration, to_seconds
from toril.transport.clock import ServerClock


class TestClock:
    """Moves the time of this process forward; `reset`, or leaving the block, moves it back."""

    __test__ = False  # pytest: not a class of tests

    @property
    def shift(self) -> timedelta:
        """How far the time was moved."""
        return timedelta(seconds=ServerClock.shift)

    async def advance(self, by: Duration, *queues: Queue) -> None:
        """Moves the time forward, and wakes the workers of these queues."""
        for queue in queues:
            if not isinstance(queue, Queue):
                raise InvalidOption("queues", f"hold a {type(queue).__name__}", "give objects of Queue")
        ServerClock.shift += to_seconds("by", by)
        for queue in queues:
            await queue.wake_worker()

    def reset(self) -> None:
        """Moves the time back."""
        ServerClock.shift = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reset()
