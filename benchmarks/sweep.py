"""`python -m benchmarks.sweep [jobs ...] [--upstream]`: how long each call of a stalled sweep blocks the server.

Guarantee: times are the CPU time of the server's main thread per call (`INFO cpu`), without the network and other
load on the machine. Other clients wait that long.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from tests.servers import Server
from toril.backends.bullmq import SUSPECTS_PER_STEP
from toril.commands import locks, worker
from toril.commands.add import JobToAdd, add_jobs
from toril.commands.command import Command
from toril.commands.worker import Pickup
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport, ConnectionPolicy

T = TypeVar("T")

NOW = 1_700_000_000_000
INTERVAL_MS = 1
ADDED_AT_ONCE = 1_000
TAKEN_AT_ONCE = 1_000
COMMAND_TIMEOUT = 120.0  # seconds; the official sweep of 50,000 jobs takes 12


class StalledQueue:
    """A queue whose jobs have all stalled, on its own server."""

    def __init__(self, transport: BlockingTransport, client: redis.Redis) -> None:
        self.keys = QueueKeys("sweep", hash_tag=False)
        self._transport = transport
        self._client = client

    def run(self, command: Command[T]) -> T:
        return self._transport.run(command)

    def timed(self, command: Command[T]) -> tuple[T, float]:
        """Returns the value and the CPU milliseconds of the server."""
        before = self._spent()
        value = self.run(command)
        return value, (self._spent() - before) * 1000

    def _spent(self) -> float:
        spent: Any = self._client.info("cpu")
        return float(spent["used_cpu_user_main_thread"]) + float(spent["used_cpu_sys_main_thread"])

    def stall_jobs(self, jobs: int) -> None:
        """Adds jobs, takes them all, marks them by one sweep, and removes their locks."""
        self._client.flushall()
        for first in range(0, jobs, ADDED_AT_ONCE):
            batch = [_job(number) for number in range(first, min(first + ADDED_AT_ONCE, jobs))]
            self.run(add_jobs(self.keys, batch))
        pickup = Pickup(token="dead", lock_ms=3_600_000)
        while self.run(worker.settle(self.keys, [], capacity=TAKEN_AT_ONCE, pickup=pickup, now_ms=NOW)).jobs:
            continue
        self.run(locks.sweep_begin(self.keys, now_ms=NOW, interval_ms=INTERVAL_MS))
        self.run(locks.sweep_step(self.keys, max_stalled=1, suspects=1))
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.delete(self.keys.stalled_check)
            for number in range(jobs):
                pipeline.delete(self.keys.lock(f"j{number}"))
            pipeline.execute()


def _job(number: int) -> JobToAdd:
    return JobToAdd(name="job", data=b'{"n":1}', options={"attempts": 3}, timestamp=NOW, id=f"j{number}")


def sweep_in_steps(queue: StalledQueue, jobs: int) -> str:
    left, begin = queue.timed(locks.sweep_begin(queue.keys, now_ms=NOW, interval_ms=INTERVAL_MS))
    steps: list[float] = []
    moved = 0
    while left > 0:
        step = locks.sweep_step(queue.keys, max_stalled=1, suspects=SUSPECTS_PER_STEP)
        (ids, left), spent = queue.timed(step)
        moved += len(ids)
        steps.append(spent)
    return (
        f"toril     {moved:>6,} of {jobs:,} moved: first call {begin:.1f} ms, "
        f"{len(steps)} steps of {SUSPECTS_PER_STEP}: median {statistics.median(steps):.1f} ms, "
        f"longest {max(steps):.1f} ms, total {sum(steps) + begin:.0f} ms"
    )


def official_sweep(queue: StalledQueue, jobs: int) -> str:
    command = locks.official_sweep(queue.keys, max_stalled=1, now_ms=NOW, interval_ms=INTERVAL_MS)
    ids, spent = queue.timed(command)
    return f"upstream  {len(ids):>6,} of {jobs:,} moved: one call of {spent:.0f} ms"


def measure(sizes: Sequence[int], methods: Sequence[Callable[[StalledQueue, int], str]]) -> None:
    policy = ConnectionPolicy(command_timeout=COMMAND_TIMEOUT)
    with (
        Server.valkey() as server,
        server.client() as client,
        BlockingTransport(server.url, policy=policy) as transport,
    ):
        queue = StalledQueue(transport, client)
        for jobs in sizes:
            for method in methods:
                queue.stall_jobs(jobs)
                print(method(queue, jobs), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="How long each call of a stalled sweep blocks the server.")
    parser.add_argument("jobs", type=int, nargs="*", default=[10_000, 50_000], help="sizes to measure")
    parser.add_argument(
        "--upstream", action="store_true", help="also measure BullMQ's official sweep (12 s for 50,000 jobs)"
    )
    chosen = parser.parse_args()
    measure(chosen.jobs, [sweep_in_steps, official_sweep] if chosen.upstream else [sweep_in_steps])


if __name__ == "__main__":
    main()
