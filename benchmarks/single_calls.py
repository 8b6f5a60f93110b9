"""Times single calls: recovery of stalled jobs, lock extension, and the limits of the data model. toril only.

Guarantee: calls of recovery are timed by what the server's main thread computes for them, as long as others must wait;
the waiting of another client is timed beside, as it is felt. The limits of the data model are round trips.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from benchmarks.contenders import Contender
from benchmarks.environment import Arena
from benchmarks.figures import percentile
from tests.servers import Server
from toril import Queue
from toril.backends.bullmq import LOCKS_PER_CALL, SUSPECTS_PER_STEP
from toril.commands import locks, worker
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport, BlockingTransport

TOKEN = "benchmark"
LOCK_MS = 600_000
TAKEN_AT_ONCE = 250
LANES = 10
PAUSE_BETWEEN_GLANCES = 0.001  # A bystander asks a thousand times a second at most.


class Bystander:
    """Another client of the same server, which measures how long it waits for its answers."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.waits_ms: list[float] = []

    def _look(self) -> None:
        while not self._over.wait(PAUSE_BETWEEN_GLANCES):
            began = time.perf_counter()
            self._client.get("bystander")
            self.waits_ms.append((time.perf_counter() - began) * 1000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


class Stopwatch:
    """Runs commands and remembers how long the server computed for each, by name."""

    def __init__(self, transport: BlockingTransport, server: Server) -> None:
        self._transport = transport
        self._client = server.client()
        self.ms: dict[str, list[float]] = {}

    def run(self, name: str, command: Any) -> Any:
        before = self._spent()
        value = self._transport.run(command)
        self.ms.setdefault(name, []).append((self._spent() - before) * 1000)
        return value

    def _spent(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    def close(self) -> None:
        self._client.close()

    def longest(self, name: str) -> float:
        return max(self.ms[name])


def sweeping(arena: Arena, _: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    """Extends all locks, sweeps while all are alive, then sweeps when all have run out."""
    arena.clear()
    count: int = words["jobs"]
    keys = QueueKeys(words["queue"])
    with BlockingTransport(arena.server.url) as transport:
        asyncio.run(_fill(arena.server.url, words["queue"], count))
        ids = _take_all(transport, keys, count)
        watch = Stopwatch(transport, arena.server)
        with Bystander(arena.server) as other:
            _extend(watch, keys, ids)
            _sweep(watch, keys, "mark")
            _sweep(watch, keys, "alive")
            _expire(arena.server, keys, ids)
            moved = _sweep(watch, keys, "stalled")
        watch.close()
    if moved != count:
        raise AssertionError(f"the sweep recovered {moved} of {count} stalled jobs")
    return {
        "extend_ms": watch.longest("extend"),
        "mark_ms": watch.longest("mark"),
        "alive_ms": watch.longest("alive"),
        "stalled_ms": watch.longest("stalled"),
        "stalled_sum_ms": sum(watch.ms["stalled"]),
        "others_p99": percentile(other.waits_ms, 0.99),
    }


async def _fill(url: str, name: str, count: int) -> None:
    async with Queue(name, redis=url) as queue:
        for start in range(0, count, 1000):
            await queue.add_bulk([("job", {"i": i}) for i in range(start, min(start + 1000, count))])


def _take_all(transport: BlockingTransport, keys: QueueKeys, count: int) -> list[str]:
    pickup = worker.Pickup(token=TOKEN, lock_ms=LOCK_MS)
    ids: list[str] = []
    while len(ids) < count:
        call = worker.settle(keys, [], take=TAKEN_AT_ONCE, pickup=pickup, now_ms=transport.now_ms())
        ids += [job_id for job_id, _ in transport.run(call).jobs]
    return ids


def _extend(watch: Stopwatch, keys: QueueKeys, ids: list[str]) -> None:
    for start in range(0, len(ids), LOCKS_PER_CALL):
        pairs = [(job_id, TOKEN) for job_id in ids[start : start + LOCKS_PER_CALL]]
        watch.run("extend", locks.extend_locks(keys, pairs, lock_ms=LOCK_MS))


def _sweep(watch: Stopwatch, keys: QueueKeys, name: str) -> int:
    """One whole sweep in its bounded calls; how many jobs it moved back."""
    now = int(time.time() * 1000)
    # An interval of a millisecond: the next sweep need not wait for the guard of this one.
    left = watch.run(name, locks.sweep_begin(keys, now_ms=now, interval_ms=1))
    moved = 0
    while left > 0:
        step = locks.sweep_step(keys, max_stalled=1, suspects=SUSPECTS_PER_STEP)
        part, left = watch.run(name, step)
        moved += len(part)
    return moved


def _expire(server: Server, keys: QueueKeys, ids: list[str]) -> None:
    with server.client() as client:
        for start in range(0, len(ids), 1000):
            client.unlink(*(keys.lock(job_id) for job_id in ids[start : start + 1000]))


def limits(arena: Arena, _: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    """p99 of reading a job, taking a job and emitting an event, ten calls under way."""
    arena.clear()
    return asyncio.run(_limits(arena.server.url, words["queue"], words["jobs"]))


async def _limits(url: str, name: str, count: int) -> dict[str, float]:
    async with Queue(name, redis=url) as queue, AsyncTransport(url) as transport:
        jobs = await queue.add_bulk([("job", {"i": i}) for i in range(count)])
        pickup = worker.Pickup(token=TOKEN, lock_ms=LOCK_MS)

        async def take(_: int) -> None:
            now_ms = await transport.now_ms()
            await transport.run(worker.settle(queue.keys, [], take=1, pickup=pickup, now_ms=now_ms))

        return {
            "read_p99": await _p99(count, lambda i: queue.get_job(jobs[i].id)),
            "pickup_p99": await _p99(count, take),
            "event_p99": await _p99(count, lambda i: jobs[i].update_progress(50)),
        }


async def _p99(count: int, step: Callable[[int], Awaitable[Any]]) -> float:
    numbers = iter(range(count))
    waits: list[float] = []

    async def lane() -> None:
        for number in numbers:
            began = time.perf_counter()
            await step(number)
            waits.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return percentile(waits, 0.99)
