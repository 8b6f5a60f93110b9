"""The two promises about time, at the values that users have: python -m tests.faults.true_values [--seed N].

The tests shorten locks and sweeps to about a second. Here nothing is shortened:

    killed      workers with their default lock (L = 30 s) and sweep (S = 30 s) are killed at random moments;
                each job that they held must be finished by another worker within L + 2 S
    busy        a handler computes for 90 s in the event loop, under a lock of 5 s, while another worker sweeps;
                no job of its worker may be taken for stalled or run twice

Both run at once and take some three minutes. The exit code is 1 when one of them does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import uuid
from typing import Any

from tests.faults.worker_processes import Fleet
from tests.servers import Server
from toril import Job, Queue
from toril.protocol.worker_options import WorkerOptions

QUEUE = "true"
DEFAULTS = WorkerOptions()
LOCK, SWEEP = float(DEFAULTS.lock_duration), float(DEFAULTS.stalled_check_interval)
BOUND = LOCK + 2 * SWEEP
VICTIMS = 8
HELD = 5  # jobs in the hands of each victim
SHORT_LOCK, COMPUTING = 5.0, 90.0


def fleet_of(server: Server, **options: Any) -> tuple[Fleet, str]:
    prefix = f"true{uuid.uuid4().hex[:8]}"
    log = str(server.folder / "workers.log")
    return Fleet(server.url, prefix, QUEUE, concurrency=HELD, log=log, **options), prefix


async def all_ended(queue: Queue, count: int, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while (await queue.get_job_counts()).completed < count and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


async def one_kill(server: Server, after: float) -> list[float]:
    """Seconds from the death of a worker until each of its jobs was finished; infinite for one that never was."""
    crew, prefix = fleet_of(server, lock=LOCK, sweep=SWEEP)
    try:
        async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
            (victim,) = await asyncio.to_thread(crew.launch)
            jobs = await queue.add_bulk([("n", {"first": 3600}) for _ in range(HELD)])
            while (await queue.get_job_counts()).active < HELD:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(crew.launch)
            await asyncio.sleep(after)
            crew.kill(victim)
            died = await queue._transport.now_ms()
            await all_ended(queue, HELD, BOUND + 30)
            return [await _finished_after(job, died) for job in jobs]
    finally:
        crew.end()


async def _finished_after(job: Job[Any], moment_ms: int) -> float:
    await job.refresh()
    ended = job.record.finished_on_ms
    return float("inf") if ended is None else (ended - moment_ms) / 1000


async def killed(server: Server, dice: random.Random) -> dict[str, Any]:
    moments = [dice.random() * SWEEP for _ in range(VICTIMS)]
    each = await asyncio.gather(*(one_kill(server, after) for after in moments))
    waits = sorted(wait for one in each for wait in one)
    return {
        "bound": BOUND,
        "workers": VICTIMS,
        "jobs": len(waits),
        "soonest": waits[0],
        "median": waits[len(waits) // 2],
        "latest": waits[-1],
        "held": waits[-1] <= BOUND,
    }


async def busy(server: Server) -> dict[str, Any]:
    crew, prefix = fleet_of(server, lock=SHORT_LOCK, sweep=SHORT_LOCK)
    try:
        async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
            await asyncio.to_thread(crew.launch)
            # Four others are in the same hands: their locks must be kept as well.
            work = [{"seconds": 1.0} for _ in range(HELD - 1)] + [{"compute": COMPUTING}]
            await queue.add_bulk([("n", one) for one in work])
            while (await queue.get_job_counts()).active < 1:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(crew.launch)
            await all_ended(queue, HELD, COMPUTING + 60)
            counts = await queue.get_job_counts()
            with server.client() as client:
                told = [fields[b"event"] for _, fields in client.xrange(queue.keys.events)]
                runs = crew.runs(client).total()
            held = counts.completed == runs == HELD and b"stalled" not in told
            return {
                "lock": SHORT_LOCK,
                "computed": COMPUTING,
                "completed": counts.completed,
                "runs": runs,
                "stalled": told.count(b"stalled"),
                "held": held,
            }
    finally:
        crew.end()


async def both(seed: int) -> dict[str, Any]:
    with Server.valkey() as server:
        kills, spins = await asyncio.gather(killed(server, random.Random(seed)), busy(server))
    return {"killed": kills, "busy": spins}


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seed", type=int, default=int(time.time()))
    seed = options.parse_args().seed
    print(f"L = {LOCK:g} s, S = {SWEEP:g} s, seed {seed}", flush=True)
    report = asyncio.run(both(seed))
    print(json.dumps(report, indent=2))
    return 0 if all(part["held"] for part in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
