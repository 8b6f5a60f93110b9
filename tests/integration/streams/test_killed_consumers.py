"""Stream workers that are killed with -9 while thousands of jobs, some of them poison, flow through them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.servers import Server
from toril import Envelope, StreamQueue
from toril.protocol.envelope import DeadLetter

CONSUMER = Path(__file__).with_name("consumer_process.py")
JOBS = 5_000
MAX_ATTEMPTS = 3
MAX_WAIT_SECONDS = 150.0  # seconds: four processes on a machine that may be busy


@contextmanager
def consumers(number: int, *arguments: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    # The kernel ends them with the test, however that ends.
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, str(CONSUMER), *arguments]
    started = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def jobs() -> list[Envelope]:
    """Every twentieth is poison: half of it fails at once, half of it fails for ever."""
    kinds = ["permanent", "transient"]
    return [
        Envelope.new(
            "work",
            {"n": n, "poison": kinds[n // 20 % 2] if n % 20 == 0 else None},
            max_attempts=MAX_ATTEMPTS,
        )
        for n in range(JOBS)
    ]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(MAX_WAIT_SECONDS):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.mark.timeout(240)
async def test_every_job_is_done_or_a_dead_letter_once_though_two_of_four_consumers_are_killed(
    valkey: Server, prefix: str
) -> None:
    added = jobs()
    poison = {one.job_id for one in added if one.payload["poison"]}
    async with StreamQueue("jobs.work", redis=valkey.url, prefix=prefix, env="test") as queue:
        await queue.add_bulk(added)

        async def settled(at_least: int) -> bool:
            totals = await queue.totals()
            return totals.get("completed", 0) + totals.get("dead", 0) >= at_least

        with consumers(4, valkey.url, prefix, "jobs.work") as processes:
            for victim in (processes[0], processes[1]):
                instant = random.randrange(100, JOBS * 2 // 3)
                await until(partial(settled, instant))
                victim.kill()
            await until(lambda: settled(JOBS))
            totals, counts = await queue.totals(), await queue.counts()
        dead_letters = [letter async for letter in queue.dead_letters()]
        with valkey.client() as client:
            deliveries = {
                job.decode(): int(number) for job, number in client.hgetall(f"{prefix}:deliveries").items()
            }
    assert (totals["completed"], totals["dead"]) == (JOBS - len(poison), len(poison))
    assert sorted(letter.job_id for letter in dead_letters) == sorted(poison)
    assert deliveries.keys() == {one.job_id for one in added}
    assert max(deliveries.values()) <= MAX_ATTEMPTS + 1
    assert (counts.waiting, counts.active, counts.scheduled) == (0, 0, 0)
    assert reasons(dead_letters) == {"permanent_error", "max_attempts_exceeded"}


def reasons(dead_letters: list[DeadLetter]) -> set[str]:
    return {letter.dlq_reason for letter in dead_letters}
