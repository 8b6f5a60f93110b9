"""The demo's second act: a stream queue, dead letters, and their second life.

Guarantee: it is played on a server of our own only: what a stream queue leaves behind for a while goes with the server.
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
    """How it went."""

    jobs: int
    dead_letters: int
    replayed: int
    completed: int

    @property
    def as_planned(self) -> bool:
        return (self.dead_letters, self.replayed, self.completed) == (BROKEN, BROKEN, self.jobs)


async def play(url: str, logger: logging.Logger) -> StreamPart:
    """Adds jobs of which some die, mends what was broken, and replays the dead letters."""
    mended = False

    async def resize(envelope: Envelope) -> None:
        if envelope.payload["number"] <= BROKEN and not mended:
            raise PermanentError("the disk is full")

    async with StreamQueue(NAME, redis=url, env="demo") as queue:
        await queue.add_bulk([("resize", {"number": number}) for number in range(1, JOBS + 1)])
        worker = StreamWorker(NAME, resize, redis=url, env="demo", concurrency=10, logger=logger)
        async with worker:
            await worker.run_until_idle()
            dead = (await queue.counts()).dead
            mended = True
            replayed = await queue.replay()
            await worker.run_until_idle()
        completed = (await queue.totals()).get("completed", 0)
    return StreamPart(jobs=JOBS, dead_letters=dead, replayed=replayed, completed=completed)
