"""Times single calls: stalled sweeps, lock extension, reading, taking and updating a job. toril only.

Guarantee: sweeps and extensions are timed by the CPU time of the server's main thread, during which other clients wait.
The round trips of another client are timed at the same time. All other calls are timed as round trips.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from benchmarks.contenders import Contender
from benchmarks.environment import Environment
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
CONCURRENT_CALLS = 10
PAUSE_BETWEEN_READS = 0.001  # seconds


class OtherClient:
    """Another client of the same server. It measures its own round trips."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.waits_ms: list[float] = []

    def _read(self) -> None:
        while not self._over.wait(PAUSE_BETWEEN_READS):
            began = time.perf_counter()
            self._client.get("other-client")
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


class ServerTimer:
    """Runs commands and records the CPU time of the server for each, by name."""

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


def sweeping(environment: Environment, _: Contender, parameters: Mapping[str, Any]) -> Mapping[str, float]:
    """Extends all locks, sweeps while all are valid, then sweeps after all have expired."""
    environment.clear()
    count: int = parameters["jobs"]
    keys = QueueKeys(parameters["queue"])
    with BlockingTransport(environment.server.url) as transport:
        asyncio.run(_fill(environment.server.url, parameters["queue"], count))
        ids = _take_all(transport, keys, count)
        timer = ServerTimer(transport, environment.server)
        with OtherClient(environment.server) as other:
            _extend(timer, keys, ids)
            _sweep(timer, keys, "mark")
            _sweep(timer, keys, "alive")
            _expire(environment.server, keys, ids)
            moved = _sweep(timer, keys, "stalled")
        timer.close()
    if moved != count:
        raise AssertionError(f"the sweep recovered {moved} of {count} stalled jobs")
    return {
        "extend_ms": timer.longest("extend"),
        "mark_ms": timer.longest("mark"),
        "alive_ms": timer.longest("alive"),
        "stalled_ms": timer.longest("stalled"),
        "stalled_sum_ms": sum(timer.ms["stalled"]),
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
        call = worker.settle(keys, [], capacity=TAKEN_AT_ONCE, pickup=pickup, now_ms=transport.now_ms())
        ids += [job_id for job_id, _ in transport.run(call).jobs]
    return ids


def _extend(timer: ServerTimer, keys: QueueKeys, ids: list[str]) -> None:
    for start in range(0, len(ids), LOCKS_PER_CALL):
        pairs = [(job_id, TOKEN) for job_id in ids[start : start + LOCKS_PER_CALL]]
        timer.run("extend", locks.extend_locks(keys, pairs, lock_ms=LOCK_MS))


def _sweep(timer: ServerTimer, keys: QueueKeys, name: str) -> int:
    """Runs one complete sweep in bounded calls; returns the number of jobs that it moved back."""
    now = int(time.time() * 1000)
    # With an interval of a millisecond the next sweep may start at once.
    left = timer.run(name, locks.sweep_begin(keys, now_ms=now, interval_ms=1))
    moved = 0
    while left > 0:
        step = locks.sweep_step(keys, max_stalled=1, suspects=SUSPECTS_PER_STEP)
        part, left = timer.run(name, step)
        moved += len(part)
    return moved


def _expire(server: Server, keys: QueueKeys, ids: list[str]) -> None:
    with server.client() as client:
        for start in range(0, len(ids), 1000):
            client.unlink(*(keys.lock(job_id) for job_id in ids[start : start + 1000]))


def limits(environment: Environment, _: Contender, parameters: Mapping[str, Any]) -> Mapping[str, float]:
    """Measures the p99 of reading a job, taking a job and writing an event, ten calls at a time."""
    environment.clear()
    return asyncio.run(_limits(environment.server.url, parameters["queue"], parameters["jobs"]))


async def _limits(url: str, name: str, count: int) -> dict[str, float]:
    async with Queue(name, redis=url) as queue, AsyncTransport(url) as transport:
        jobs = await queue.add_bulk([("job", {"i": i}) for i in range(count)])
        pickup = worker.Pickup(token=TOKEN, lock_ms=LOCK_MS)

        async def take(_: int) -> None:
            now_ms = await transport.now_ms()
            await transport.run(worker.settle(queue.keys, [], capacity=1, pickup=pickup, now_ms=now_ms))

        return {
            "read_p99": await _p99(count, lambda i: queue.get_job(jobs[i].id)),
            "pickup_p99": await _p99(count, take),
            "event_p99": await _p99(count, lambda i: jobs[i].update_progress(50)),
        }


async def _p99(count: int, step: Callable[[int], Awaitable[Any]]) -> float:
    numbers = iter(range(count))
    waits: list[float] = []

    async def caller() -> None:
        for number in numbers:
            began = time.perf_counter()
            await step(number)
            waits.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*(caller() for _ in range(CONCURRENT_CALLS)))
    return percentile(waits, 0.99)
