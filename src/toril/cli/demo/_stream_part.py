"""The second part of the demo: a stream queue, its dead letters, and their replay."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from toril.errors import PermanentError
from toril.producer import StreamQueue
from toril.protocol.envelope import Envelope
from toril.worker import StreamWorker

NAME = "captions"
ENV = "demo"
JOBS, BROKEN = 60, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """The counts of the second part."""

    jobs: int
    dead_letters: int
    replayed: int
    completed: int

    @property
    def as_planned(self) -> bool:
        return (self.dead_letters, self.replayed, self.completed) == (BROKEN, BROKEN, self.jobs)


async def run_stream_part(url: str, prefix: str, logger: logging.Logger) -> StreamPart:
    """Adds jobs of which some fail for good, removes the cause, and replays the dead letters."""
    repaired = False

    async def caption(envelope: Envelope) -> None:
        if envelope.payload["number"] <= BROKEN and not repaired:
            raise PermanentError("the disk is full")

    async with StreamQueue(NAME, redis=url, prefix=prefix, env=ENV) as queue:
        await queue.add_bulk([("caption", {"number": number}) for number in range(1, JOBS + 1)])
        worker = StreamWorker(NAME, caption, redis=url, prefix=prefix, env=ENV, concurrency=10, logger=logger)
        async with worker:
            await worker.run_until_idle()
            dead = (await queue.counts()).dead
            repaired = True
            replayed = await queue.replay()
            await worker.run_until_idle()
        completed = (await queue.totals()).get("completed", 0)
    return StreamPart(jobs=JOBS, dead_letters=dead, replayed=replayed, completed=completed)


async def remove_stream(url: str, prefix: str) -> None:
    """Removes the stream queue."""
    async with StreamQueue(NAME, redis=url, prefix=prefix, env=ENV) as queue:
        await queue.obliterate()
