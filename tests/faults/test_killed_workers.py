"""Worker processes that are killed, stopped and frozen at any moment: nothing is lost, repetitions are counted."""

from __future__ import annotations

import asyncio
import collections
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.faults.conftest import QUEUE
from tests.faults.worker_processes import MAX_WAIT_SECONDS, Fleet
from tests.servers import Server
from tests.waiting import until, wait_until
from toril import Job, Queue, Worker
from toril.commands import locks
from toril.commands.command import plain
from toril.protocol.state import JobState
from toril.transport import AsyncTransport

pytestmark = pytest.mark.timeout(120)
MakeFleet = Callable[..., Fleet]

REFUSED = re.compile(r"Outcome refused count=(\d+)")


def events(client: redis.Redis, queue: Queue) -> collections.Counter[tuple[str, str]]:
    """How often each kind of event was told of each job."""
    found: Any = client.xrange(queue.keys.events)
    return collections.Counter(
        (fields[b"event"].decode(), fields.get(b"jobId", b"").decode()) for _, fields in found
    )


async def ended(queue: Queue, count: int, wait_seconds: float = MAX_WAIT_SECONDS) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        counts = await queue.get_job_counts()
        if counts.completed + counts.failed == count:
            return
        assert time.monotonic() < deadline, f"lost: {counts}"
        await asyncio.sleep(0.02)


async def until_runs(crew: Fleet, server: Server, count: int) -> None:
    """Waits until the handlers of a fleet began that many times in all."""
    with server.client() as client:
        await until(lambda: crew.runs(client).total() >= count, f"{count} runs")


async def test_killed_workers_lose_no_job_and_repeat_no_more_than_they_held(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    dice, kills, concurrency = random.Random(3), 5, 5
    crew = fleet(valkey.url, concurrency=concurrency, max_stalled=20)
    workers = crew.launch(kills + 1)
    await under_attack.add_bulk([("n", {"seconds": 0.05, "fail": int(i % 7 == 0)}) for i in range(400)])
    for turn in range(kills):
        await until_runs(crew, valkey, 60 * turn + dice.randrange(1, 60))
        crew.kill(workers.pop(dice.randrange(len(workers))))
    await ended(under_attack, 400)
    with valkey.client() as client:
        runs = crew.runs(client)
    expected = 400 + 400 // 7 + 1
    counts = await under_attack.get_job_counts()
    print(f"killed {kills}, runs {runs.total()}, repeated {runs.total() - expected}")
    assert len(runs) == 400
    assert counts.completed == 400
    assert runs.total() - expected <= kills * concurrency


async def test_a_job_that_kills_workers_ends_in_failed_and_the_others_complete(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    crew = fleet(valkey.url, lock=0.5, concurrency=1)
    poison = await under_attack.add("n", {"die": int(signal.SIGKILL)})
    others = await under_attack.add_bulk([("n", {"seconds": 0.01}) for _ in range(20)])

    def end_of_one() -> bool:
        dead = [one for one in crew.crew if one.poll() is not None]
        for one in dead:
            crew.kill(one)
        return bool(dead)

    deaths = 0
    while await poison.get_state() != JobState.FAILED:
        if not crew.crew:
            crew._start({})
        deaths += await asyncio.to_thread(end_of_one)
        assert deaths <= 3, "a job that kills workers must not do so for ever"
    await ended(under_attack, 21)
    assert (await under_attack.get_job_counts()).completed == len(others)
    assert deaths == 2  # the first, and once more because one stall is forgiven


async def test_workers_that_are_stopped_at_any_moment_lose_and_repeat_nothing(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    dice = random.Random(5)
    crew = fleet(valkey.url, lock=2.0)
    workers = crew.launch(7)
    await under_attack.add_bulk([("n", {"seconds": 0.03}) for _ in range(600)])
    for turn in range(6):
        await until_runs(crew, valkey, 80 * turn + dice.randrange(1, 80))
        victim = workers.pop(dice.randrange(len(workers)))
        assert await asyncio.to_thread(crew.terminate, victim) == 0
    await ended(under_attack, 600)
    with valkey.client() as client:
        runs, told = crew.runs(client), events(client, under_attack)
    assert runs.total() == len(runs) == 600
    assert not [event for event, _ in told if event == "stalled"]


async def test_workers_that_are_stopped_while_they_start_lose_nothing(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    dice = random.Random(11)
    crew = fleet(valkey.url, lock=2.0)
    await under_attack.add_bulk([("n", {"seconds": 0.02}) for _ in range(100)])
    for _ in range(4):
        process = crew._start({})
        await asyncio.sleep(0.35 + dice.random() * 0.5)
        code = await asyncio.to_thread(crew.terminate, process)
        assert code in (0, -signal.SIGTERM)  # before or after it could hear
    crew.launch()
    await ended(under_attack, 100)
    with valkey.client() as client:
        assert crew.runs(client).total() == 100


async def test_a_worker_that_slept_longer_than_its_lock_finishes_nothing_twice(
    under_attack: Queue, valkey: Server, fleet: MakeFleet, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    crew = fleet(valkey.url, lock=0.5, concurrency=3, log=str(log), max_stalled=5)
    jobs = await under_attack.add_bulk([("n", {"seconds": 0.4}) for _ in range(3)])
    (sleeper,) = crew.launch()
    with valkey.client() as client:
        await asyncio.to_thread(wait_until, lambda: crew.runs(client).total() == 3, "all three run")
        sleeper.send_signal(signal.SIGSTOP)
        crew.launch()
        await ended(under_attack, 3)
        sleeper.send_signal(signal.SIGCONT)
        await asyncio.to_thread(
            wait_until, lambda: sum(map(int, REFUSED.findall(log.read_text()))) == 3, "three refusals"
        )
        told = events(client, under_attack)
    assert [told["completed", job.id] for job in jobs] == [1, 1, 1]
    assert [told["stalled", job.id] for job in jobs] == [1, 1, 1]


async def test_a_worker_that_slept_alone_longer_than_its_lock_keeps_its_results(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    crew = fleet(valkey.url, lock=0.5, concurrency=3)
    jobs = await under_attack.add_bulk([("n", {"seconds": seconds}) for seconds in (0.1, 2.0, 2.0)])
    (sleeper,) = crew.launch()
    with valkey.client() as client:
        await asyncio.to_thread(wait_until, lambda: crew.runs(client).total() == 3, "all three run")
        sleeper.send_signal(signal.SIGSTOP)
        locked = [under_attack.keys.lock(job.id) for job in jobs]
        await asyncio.to_thread(wait_until, lambda: client.exists(*locked) == 0, "all locks have run out")
        sleeper.send_signal(signal.SIGCONT)
        await ended(under_attack, 3)
        assert crew.runs(client) == collections.Counter(job.id for job in jobs)
        assert not [event for event, _ in events(client, under_attack) if event == "stalled"]


async def test_a_job_that_comes_back_to_the_worker_that_lost_it_keeps_its_new_lock(
    under_attack: Queue, behind: AsyncTransport, valkey: Server, prefix: str
) -> None:
    """Two handlers for one job in one worker: the first may end, and the second must not lose its lock by that."""
    queue = under_attack
    begun: list[Job[Any]] = []
    first_may_end, second_may_end = asyncio.Event(), asyncio.Event()

    async def handle(job: Job[Any]) -> str:
        begun.append(job)
        which, event = ("first", first_may_end) if len(begun) == 1 else ("second", second_may_end)
        await event.wait()
        return which

    async with Worker(
        QUEUE,
        handle,
        redis=valkey.url,
        prefix=prefix,
        concurrency=2,
        lock_duration=1,
        stalled_check_interval=60,
    ) as worker:
        job = await queue.add("n", {})
        await until(lambda: begun, "the first run begins")
        await behind.run(plain(int, "DEL", queue.keys.lock(job.id)))
        for _ in range(2):
            await behind.run(plain(int, "DEL", queue.keys.stalled_check))
            now = await behind.now_ms()
            await behind.run(locks.official_sweep(queue.keys, max_stalled=5, now_ms=now, interval_ms=1000))
        await until(lambda: len(begun) == 2, "the second run begins")
        await until(lambda: begun[0].lock_lost, "the first run knows that it lost its lock")
        assert not begun[1].lock_lost
        first_may_end.set()
        await until(lambda: worker.health().jobs == 1, "the first run has ended")
        times_left: list[int] = []

        async def is_renewed_four_times() -> bool:
            times_left.append(await behind.run(plain(int, "PTTL", queue.keys.lock(job.id))))
            assert times_left[-1] > 0, "the lock of the second run was not renewed"
            return sum(later > earlier for earlier, later in pairwise(times_left)) >= 4

        await until(is_renewed_four_times, "the lock of the second run is renewed")
        assert not begun[1].lock_lost
        second_may_end.set()
        assert await job.wait_until_finished(timeout=10) == "second"


async def test_a_process_that_blocks_its_loop_longer_than_the_lock_stalls_nothing(
    under_attack: Queue, valkey: Server, fleet: MakeFleet
) -> None:
    crew = fleet(valkey.url, lock=0.5, concurrency=4)
    jobs = await under_attack.add_bulk(
        [("n", {"block": 3.0 if i == 1 else 0, "seconds": 0.2}) for i in range(8)]
    )
    crew.launch()
    await ended(under_attack, 8)
    with valkey.client() as client:
        assert crew.runs(client) == collections.Counter(job.id for job in jobs)
        assert not [event for event, _ in events(client, under_attack) if event == "stalled"]


async def test_a_hung_thread_does_not_keep_a_process_from_ending(
    under_attack: Queue, valkey: Server, prefix: str
) -> None:
    text = (
        "import asyncio, sys, threading\n"
        "from toril import Worker\n"
        "def hang(job): print('begun', flush=True); threading.Event().wait()\n"
        "worker = Worker(sys.argv[2], hang, redis=sys.argv[1], prefix=sys.argv[3], shutdown_timeout=0.2)\n"
        "asyncio.run(worker.run())\n"
    )
    job = await under_attack.add("n", {})
    process = subprocess.Popen(
        [sys.executable, "-c", text, valkey.url, QUEUE, prefix], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        if process.poll() is None:
            psutil.Process(process.pid).kill()
            process.wait()
        process.stdout.close()
    found = await under_attack.get_job(job.id)
    assert found is not None and await found.get_state() == JobState.WAITING
    assert found.stalled_count == 0
