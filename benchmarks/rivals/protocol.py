"""The words between the runner and an adapter: one JSON task in argv, one JSON object of figures on standard output.

Guarantee: every adapter in Python measures with what stands here, so that all figures mean the same. It runs inside the
rivals' own environments and needs the standard library only; the twin for Node is `protocol.mjs`.

    processing   from the start of the first handler to the end of the last; CPU of the process over the same span
    adding       from before the first call to after the last reply
    latency      from before `add` to the start of the handler, and to the moment when the producer knows it is done
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

IDLE_SECONDS = 1.0  # One of several processes is done when nothing came for this long.
EMPTY_GLANCES = 10  # … or when as many such spans brought nothing at all.
GIVE_UP_SECONDS = 120.0  # A rival that hangs fails its run, not the benchmark.
PAUSE_BETWEEN_SAMPLES = 0.005  # Long enough for a worker to go back to its blocking wait.
PAGE = os.sysconf("SC_PAGE_SIZE")


class Task:
    """What the runner asks for."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.name: str = words["task"]
        self.url: str = words["url"]
        self.queue: str = words["queue"]
        self.jobs: int = words["jobs"]
        self.concurrency: int = words.get("concurrency", 1)
        self.payload_bytes: int = words.get("payload_bytes", 0)
        self.options: dict[str, Any] = words.get("options", {})  # of each job, in BullMQ's words
        self.worker: str = words.get("worker", "")  # its name, where memory is compared
        self.mix: str = words.get("mix", "")  # "delayed", "prioritized", "retries": every tenth or other job
        self.shared: bool = words.get("shared", False)  # other processes work on the same queue
        self.kind: str = words.get("kind", "")  # list or stream, where a rival has both
        self.uvloop: bool = words.get("uvloop", True)

    def payload(self, number: int) -> dict[str, Any]:
        return {"i": number, "pad": "x" * self.payload_bytes} if self.payload_bytes else {"i": number}

    def chunks(self, size: int = 1000) -> Iterator[range]:
        for start in range(0, self.jobs, size):
            yield range(start, min(start + size, self.jobs))


class Stretch:
    """A span of time and what it cost this process."""

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
    """Counts handled jobs; every handler calls `tick` as its only work."""

    def __init__(self, task: Task, *, goal: int | None = None) -> None:
        self._task = task
        self._goal = goal or task.jobs
        self._lock = threading.Lock()
        self._stretch: Stretch | None = None
        self._figures: dict[str, Any] | None = None
        self._done = threading.Event()
        self.count = 0

    def tick(self) -> None:
        """One job was handled, in the event loop."""
        if self._stretch is None:
            self._stretch = Stretch()
        self.count += 1
        if self.count == self._goal or self._task.shared:
            self._figures = self._stretch.figures(self.count)
            if self.count >= self._goal:
                self._done.set()

    def tick_in_thread(self) -> None:
        """One job was handled, by one of several threads."""
        with self._lock:
            self.tick()

    def wait(self) -> None:
        """Blocks until all jobs were handled, or, among several processes, until no more come."""
        if not self._task.shared:
            if not self._done.wait(GIVE_UP_SECONDS):
                raise TimeoutError(f"{self.count} of {self._goal} jobs after {GIVE_UP_SECONDS:g} s")
            return
        seen, empty = -1, 0
        # One that was late may find that the others have done everything.
        while seen != self.count or (not self.count and empty < EMPTY_GLANCES):
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
        self._in_loop = asyncio.Event()  # of no use to handlers in threads, and no harm
        self._started_at = 0.0
        self.started: list[float] = []
        self.known: list[float] = []

    def tick(self) -> None:
        """The handler runs."""
        self._started_at = time.perf_counter()
        self._handled.set()
        self._in_loop.set()

    async def measure(
        self, add: Callable[[int], Awaitable[Any]], know: Callable[[Any], Awaitable[Any]] | None = None
    ) -> dict[str, Any]:
        for number in range(self._samples):
            await asyncio.sleep(PAUSE_BETWEEN_SAMPLES)
            self._in_loop.clear()
            began = time.perf_counter()
            added = await add(number)
            if know is not None:
                await know(added)
                self.known.append((time.perf_counter() - began) * 1000)
            await self._in_loop.wait()
            self.started.append((self._started_at - began) * 1000)
        return self.figures()

    def measure_blocking(
        self, add: Callable[[int], Any], know: Callable[[Any], Any] | None = None
    ) -> dict[str, Any]:
        for number in range(self._samples):
            time.sleep(PAUSE_BETWEEN_SAMPLES)
            self._handled.clear()
            began = time.perf_counter()
            added = add(number)
            if know is not None:
                know(added)
                self.known.append((time.perf_counter() - began) * 1000)
            if not self._handled.wait(30):
                raise TimeoutError("an idle worker did not take a job within 30 s")
            self.started.append((self._started_at - began) * 1000)
        return self.figures()

    def figures(self) -> dict[str, Any]:
        return {"jobs": self._samples, "started_ms": self.started, "known_ms": self.known}


async def add_in_chunks(task: Task, add_many: Callable[[range], Awaitable[Any]]) -> dict[str, Any]:
    """Bulk adds of a thousand, one after another."""
    stretch = Stretch()
    for chunk in task.chunks():
        await add_many(chunk)
    return stretch.figures(task.jobs)


async def add_one_by_one(task: Task, add: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    """Single adds, as many under way as the task's concurrency says."""
    numbers = iter(range(task.jobs))

    async def lane() -> None:
        for number in numbers:
            await add(number)

    stretch = Stretch()
    await asyncio.gather(*(lane() for _ in range(task.concurrency)))
    return stretch.figures(task.jobs)


def add_blocking(task: Task, add: Callable[[int], Any]) -> dict[str, Any]:
    """Single adds of a library without asyncio; concurrency means threads."""
    numbers = iter(range(task.jobs))
    lock = threading.Lock()

    def lane() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            add(number)

    stretch = Stretch()
    if task.concurrency == 1:
        lane()
    else:
        threads = [threading.Thread(target=lane) for _ in range(task.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return stretch.figures(task.jobs)


def memory() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {"rss_mb": pages * PAGE / 1e6}


def answer(**tasks: Callable[[Task], Any]) -> None:
    """Does what argv asks for and says what it measured."""
    task = Task(json.loads(sys.argv[1]))
    does = tasks.get(task.name)
    if does is None:
        say({"unsupported": True})
    elif asyncio.iscoroutinefunction(does):
        run(_done(does(task)), fast=task.uvloop)
    else:
        say(does(task))


async def _done(figures: Awaitable[dict[str, Any]]) -> None:
    say(await figures)


def say(figures: dict[str, Any]) -> None:
    """The last words, and the end of the process at once: no rival's slow farewell is waited for."""
    stdout = sys.__stdout__  # some rivals put their own in the place of sys.stdout
    assert stdout is not None
    stdout.write("\n" + json.dumps(figures) + "\n")
    stdout.flush()
    os._exit(0)


def run(coroutine: Any, *, fast: bool) -> None:
    """With uvloop where the rival's environment has it: that is its recommended fast setting."""
    if fast and find_spec("uvloop"):
        import_module("uvloop").run(coroutine)
    else:
        asyncio.run(coroutine)
