"""Clocks that are an hour wrong: delays and locks follow the server's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from tests.faults.test_killed_workers import ended
from tests.faults.worker_processes import Fleet
from tests.faults.worker_program import mistake_the_time
from tests.servers import Server
from toril import Queue

MakeFleet = Callable[..., Fleet]
HOUR = 3600


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes this process, the producer, mistake the time as well."""
    import time

    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    return mistake_the_time


@pytest.mark.parametrize(("producer", "worker"), [(HOUR, -HOUR), (-HOUR, HOUR), (0, HOUR)])
async def test_delays_are_right_by_the_servers_clock(
    valkey: Server, prefix: str, fleet: MakeFleet, skewed: Callable[[float], None], producer: int, worker: int
) -> None:
    crew = fleet(valkey.url, concurrency=20)
    await asyncio.to_thread(crew.launch, 1, CLOCK_SKEW=str(worker))
    skewed(producer)
    with valkey.client() as client:
        async with Queue("work", redis=valkey.url, prefix=prefix) as queue:
            seconds, micros = client.time()
            asked_at = seconds * 1000 + micros // 1000
            jobs = [await queue.add("n", {"tell": True}, delay=0.2 + i * 0.1) for i in range(10)]
            retried = await queue.add("n", {"tell": True, "fail": 1}, attempts=2, backoff=0.5)
            await ended(queue, 11)
            began = {k.decode(): int(v) for k, v in client.hgetall(f"{crew.runs_key}:began").items()}
            late = [began[job.id] - asked_at - (200 + i * 100) for i, job in enumerate(jobs)]
            print(f"milliseconds after the time: {late}")
            # Not before its time, to the millisecond; how late is for the machine, and shown above.
            assert min(late) >= -1
            assert max(late) < 5000
            found = await queue.get_job(retried.id)
            assert found is not None and found.attempts_made == 2
            assert abs(found.timestamp.timestamp() * 1000 - asked_at) < 60_000  # the server's time, not ours
            assert max(job.stalled_count for job in await queue.get_completed()) == 0
    assert "CLOCK_SKEW" not in os.environ
