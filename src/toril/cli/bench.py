"""`toril bench`: measures the speed of queue and worker on a server.

Guarantee: it uses its own queue and removes it. The figures are those of one process with an empty handler: an upper
bound for real jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from toril.cli._options import AsJson, Prefix, RedisUrl
from toril.cli._output import emit, format_seconds, print_line, progress_bar, show
from toril.cli._target import Target
from toril.errors import TorilError
from toril.jobs import Job
from toril.producer import Queue
from toril.worker import Worker

BULK_SIZE = 500  # jobs per call of add_bulk
SINGLE_JOBS = 200  # jobs that are added one at a time

_LOGGER = logging.getLogger("toril.bench")
_LOGGER.setLevel(logging.ERROR)


def add_to(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of jobs to add and process.")] = 20_000,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Number of jobs that run at the same time.")
    ] = 100,
    rivals: Annotated[
        bool,
        typer.Option(
            "--rivals", help="In a checkout of toril: run all its benchmarks, with other libraries."
        ),
    ] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast jobs are added and processed in one process."""
    if rivals:
        raise typer.Exit(_run_benchmarks(as_json=as_json))
    target = Target.of(redis, prefix)
    with progress_bar("measuring"):
        figures = asyncio.run(_measure(target, jobs, concurrency))
    if as_json:
        emit({"server": target.server, "jobs": jobs, "concurrency": concurrency, **figures})
        return
    rows = [
        ("jobs added in bulk", f"{figures['bulk_added_per_second']:,.0f} /s"),
        ("jobs added one by one", f"{figures['added_per_second']:,.0f} /s"),
        ("jobs processed", f"{figures['processed_per_second']:,.0f} /s"),
        ("from add to handler, median", format_seconds(figures["start_p50_seconds"])),
        ("from add to handler, p99", format_seconds(figures["start_p99_seconds"])),
    ]
    show(["what", "how much"], rows, right=["how much"])
    print_line(f"{jobs} jobs, {concurrency} at once, in one process, on {target.server}")


def _run_benchmarks(*, as_json: bool) -> int:
    if as_json:
        raise TorilError("the benchmarks write their JSON to a file: python -m benchmarks --json FILE")
    if not Path("benchmarks/__main__.py").exists():
        raise TorilError("there are no benchmarks in this folder; run it in a checkout of toril")
    return subprocess.run([sys.executable, "-m", "benchmarks"], check=False).returncode


async def _measure(target: Target, jobs: int, concurrency: int) -> dict[str, float]:
    name = f"toril-bench-{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(
            Queue(name, redis=target.redis, prefix=target.prefix_of("bullmq"))
        )
        stack.push_async_callback(queue.obliterate, force=True)
        figures = {"bulk_added_per_second": await _measure_bulk(queue, jobs)}
        figures["processed_per_second"] = await _measure_processing(name, target, jobs, concurrency)
        return figures | await _measure_single(queue, name, target)


async def _measure_bulk(queue: Queue, jobs: int) -> float:
    started = time.perf_counter()
    for start in range(0, jobs, BULK_SIZE):
        await queue.add_bulk([("work", {"n": start})] * min(BULK_SIZE, jobs - start))
    return jobs / (time.perf_counter() - started)


async def _measure_processing(name: str, target: Target, jobs: int, concurrency: int) -> float:
    left, done = jobs, asyncio.Event()

    async def handle(_: Job) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with _worker(name, handle, target, concurrency):
        started = time.perf_counter()
        await done.wait()
        return jobs / (time.perf_counter() - started)


def _worker(name: str, handle: Callable[[Job], Awaitable[None]], target: Target, concurrency: int) -> Worker:
    prefix = target.prefix_of("bullmq")
    return Worker(name, handle, redis=target.redis, prefix=prefix, concurrency=concurrency, logger=_LOGGER)


async def _measure_single(queue: Queue, name: str, target: Target) -> dict[str, float]:
    starts: asyncio.Queue[float] = asyncio.Queue()
    waits, adding = [], 0.0

    async def handle(_: Job) -> None:
        starts.put_nowait(time.perf_counter())

    async with _worker(name, handle, target, 1):
        for _ in range(SINGLE_JOBS):
            started = time.perf_counter()
            await queue.add("work", {})
            adding += time.perf_counter() - started
            waits.append(await starts.get() - started)
    return {
        "added_per_second": SINGLE_JOBS / adding,
        "start_p50_seconds": statistics.median(waits),
        "start_p99_seconds": statistics.quantiles(waits, n=100)[98],
    }
