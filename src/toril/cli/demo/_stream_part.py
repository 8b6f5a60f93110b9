"""The second part of the demo: a stream queue, its dead letters, and their replay.

Guarantee: it runs only on the demo's own server, and the keys of the stream queue are removed with that server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from toril.errors import PermanentError
from toril.producer import StreamQueue
from toril.protocol.envelope import Envelope
from toril.worker import StreamWorker

NAME = "images"
JOBS, BROKEN = 30, 3


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


async def run_stream_part(url: str, logger: logging.Logger) -> StreamPart:
    """Adds jobs of which some fail for good, removes the cause, and replays the dead letters."""
    repaired = False

    async def resize(envelope: Envelope) -> None:
        if envelope.payload["number"] <= BROKEN and not repaired:
            raise PermanentError("the disk is full")

    async with StreamQueue(NAME, redis=url, env="demo") as queue:
        await queue.add_bulk([("resize", {"number": number}) for number in range(1, JOBS + 1)])
        worker = StreamWorker(NAME, resize, redis=url, env="demo", concurrency=10, logger=logger)
        async with worker:
            await worker.run_until_idle()
            dead = (await queue.counts()).dead
            repaired = True
            replayed = await queue.replay()
            await worker.run_until_idle()
        completed = (await queue.totals()).get("completed", 0)
    return StreamPart(jobs=JOBS, dead_letters=dead, replayed=replayed, completed=completed)
