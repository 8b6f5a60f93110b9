"""The protocol between the runner and an adapter: one JSON task in argv, one JSON object of figures on standard output.

Guarantee: every Python adapter measures with the classes of this module, so that figures are comparable. The module
runs in the virtual environments of the rivals and needs the standard library only. `protocol.mjs` is the same for
Node.

    processing   from the start of the first handler to the end of the last; CPU of the process over the same span
    adding       from before the first call to after the last reply
    latency      from before `add` to the start of the handler, and to the moment when the producer has the result
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

IDLE_SECONDS = 1.0  # One of several processes ends after this time without a job …
EMPTY_CHECKS = 10  # … or after this many such times if it never had a job.
GIVE_UP_SECONDS = 120.0  # A rival that hangs fails its run; the benchmark continues.
PAUSE_BETWEEN_SAMPLES = 0.005  # Long enough for a worker to block on the queue again.
PAGE = os.sysconf("SC_PAGE_SIZE")


class Task:
    """The task that the runner sends."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.name: str = parameters["task"]
        self.url: str = parameters["url"]
        self.queue: str = parameters["queue"]
        self.jobs: int = parameters["jobs"]
        self.concurrency: int = parameters.get("concurrency", 1)
        self.payload_bytes: int = parameters.get("payload_bytes", 0)
        self.options: dict[str, Any] = parameters.get("options", {})  # of each job, with BullMQ's names
        self.ids: str = parameters.get("ids", "")  # form of ids, for those that have several
        self.worker: str = parameters.get("worker", "")  # name of the worker, where memory is compared
        self.mix: str = parameters.get(
            "mix", ""
        )  # "delayed", "prioritized", "retries": every tenth or other job
        self.shared: bool = parameters.get("shared", False)  # other processes take jobs of the same queue
        self.kind: str = parameters.get("kind", "")  # list or stream, for rivals that offer both
        self.uvloop: bool = parameters.get("uvloop", True)

    def payload(self, number: int) -> dict[str, Any]:
        return {"i": number, "pad": "x" * self.payload_bytes} if self.payload_bytes else {"i": number}

    def chunks(self, size: int = 1000) -> Iterator[range]:
        for start in range(0, self.jobs, size):
            yield range(start, min(start + size, self.jobs))


class Timer:
    """Measures the time and CPU of this process since it was created."""

    def __init__(self) -> None:
        self.began = time.time()
        self._clock = time.perf_counter()
        self._cpu = time.process_time()

    def figures(self, jobs: int) -> dict[str, Any]:
        return {
            "jobs": jobs,
            "seconds": time.perf_counter() - self._clock,
            "cpu": time.process_time() - self._cpu,
            "began": self.began,
            "ended": time.time(),
        }


class Meter:
    """Counts handled jobs. A handler calls `tick` and does nothing else."""

    def __init__(self, task: Task, *, goal: int | None = None) -> None:
        self._task = task
        self._goal = goal or task.jobs
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._figures: dict[str, Any] | None = None
        self._done = threading.Event()
        self.count = 0

    def tick(self) -> None:
        """Counts one job that was handled in the event loop."""
        if self._timer is None:
            self._timer = Timer()
        self.count += 1
        if self.count == self._goal or self._task.shared:
            self._figures = self._timer.figures(self.count)
            if self.count >= self._goal:
                self._done.set()

    def tick_in_thread(self) -> None:
        """Counts one job that was handled by one of several threads."""
        with self._lock:
            self.tick()

    def wait(self) -> None:
        """Blocks until all jobs were handled or, with several processes, until no more arrive."""
        if not self._task.shared:
            if not self._done.wait(GIVE_UP_SECONDS):
                raise TimeoutError(f"{self.count} of {self._goal} jobs after {GIVE_UP_SECONDS:g} s")
            return
        seen, empty = -1, 0
        # A process that starts late may get no job at all.
        while seen != self.count or (not self.count and empty < EMPTY_CHECKS):
            seen, empty = self.count, empty + 1
            if self._done.wait(IDLE_SECONDS):
                return

    async def finished(self) -> None:
        await asyncio.to_thread(self.wait)

    def figures(self) -> dict[str, Any]:
        if self._figures is None:
            return {"jobs": 0, "seconds": 0.0, "cpu": 0.0, "began": time.time(), "ended": 0.0} | memory()
        return self._figures | memory()

    def rate(self) -> float:
        figures = self.figures()
        return float(figures["jobs"] / figures["seconds"])


class Latency:
    """Times single jobs through an idle worker, in milliseconds."""

    def __init__(self, task: Task) -> None:
        self._samples = task.jobs
        self._handled = threading.Event()
        self._in_loop = asyncio.Event()  # unused by handlers in threads
        self._started_at = 0.0
        self.started: list[float] = []
        self.known: list[float] = []

    def tick(self) -> None:
        """Records the start of the handler."""
        self._started_at = time.perf_counter()
        self._handled.set()
        self._in_loop.set()

    async def measure(
        self, add: Callable[[int], Awaitable[Any]], wait_done: Callable[[Any], Awaitable[Any]] | None = None
    ) -> dict[str, Any]:
        for number in range(self._samples):
            await asyncio.sleep(PAUSE_BETWEEN_SAMPLES)
            self._in_loop.clear()
            began = time.perf_counter()
            added = await add(number)
            if wait_done is not None:
                await wait_done(added)
                self.known.append((time.perf_counter() - began) * 1000)
            await self._in_loop.wait()
            self.started.append((self._started_at - began) * 1000)
        return self.figures()

    def measure_blocking(
        self, add: Callable[[int], Any], wait_done: Callable[[Any], Any] | None = None
    ) -> dict[str, Any]:
        for number in range(self._samples):
            time.sleep(PAUSE_BETWEEN_SAMPLES)
            self._handled.clear()
            began = time.perf_counter()
            added = add(number)
            if wait_done is not None:
                wait_done(added)
                self.known.append((time.perf_counter() - began) * 1000)
            if not self._handled.wait(30):
                raise TimeoutError("an idle worker did not take a job within 30 s")
            self.started.append((self._started_at - began) * 1000)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        return {"jobs": self._samples, "started_ms": self.started, "known_ms": self.known}


async def add_in_chunks(task: Task, add_many: Callable[[range], Awaitable[Any]]) -> dict[str, Any]:
    """Adds jobs in bulk calls of 1,000, one after another."""
    timer = Timer()
    for chunk in task.chunks():
        await add_many(chunk)
    return timer.figures(task.jobs)


async def add_one_by_one(task: Task, add: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    """Adds single jobs, with the concurrency of the task."""
    numbers = iter(range(task.jobs))

    async def adder() -> None:
        for number in numbers:
            await add(number)

    timer = Timer()
    await asyncio.gather(*(adder() for _ in range(task.concurrency)))
    return timer.figures(task.jobs)


def add_blocking(task: Task, add: Callable[[int], Any]) -> dict[str, Any]:
    """Adds single jobs with a library without asyncio; concurrency is the number of threads."""
    numbers = iter(range(task.jobs))
    lock = threading.Lock()

    def adder() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            add(number)

    timer = Timer()
    if task.concurrency == 1:
        adder()
    else:
        threads = [threading.Thread(target=adder) for _ in range(task.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return timer.figures(task.jobs)


def memory() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {"rss_mb": pages * PAGE / 1e6}


def run_task(**tasks: Callable[[Task], Any]) -> None:
    """Runs the task in argv and prints its figures."""
    task = Task(json.loads(sys.argv[1]))
    function = tasks.get(task.name)
    if function is None:
        print_figures({"unsupported": True})
    elif asyncio.iscoroutinefunction(function):
        run(_print_awaited(function(task)), fast=task.uvloop)
    else:
        print_figures(function(task))


async def _print_awaited(figures: Awaitable[dict[str, Any]]) -> None:
    print_figures(await figures)


def print_figures(figures: dict[str, Any]) -> None:
    """Prints the figures and ends the process at once, without waiting for a rival's shutdown."""
    stdout = sys.__stdout__  # some rivals replace sys.stdout
    assert stdout is not None
    stdout.write("\n" + json.dumps(figures) + "\n")
    stdout.flush()
    os._exit(0)


def run(coroutine: Any, *, fast: bool) -> None:
    """Runs with uvloop if it is installed for the rival, which then recommends it."""
    if fast and find_spec("uvloop"):
        import_module("uvloop").run(coroutine)
    else:
        asyncio.run(coroutine)
