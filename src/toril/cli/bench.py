"""`toril bench`: how fast queue and worker are here, on the server that is asked.

Guarantee: it works on a queue of its own and leaves nothing behind; its figures are of one process that does nothing in
its handler, so they are a bound for real work and no promise.
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
from pathlib import Path
from typing import Annotated, Any

import typer

from toril.cli._options import AsJson, Prefix, RedisUrl
from toril.cli._output import emit, in_progress, say, seconds, show
from toril.cli._target import Target
from toril.errors import TorilError
from toril.jobs import Job
from toril.producer import Queue
from toril.worker import Worker

PART = 500  # jobs in one call of add_bulk
ALONE = 200  # jobs that are added one by one and waited for

_SILENT = logging.getLogger("toril.bench")
_SILENT.setLevel(logging.ERROR)


def add_to(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="How many jobs are added and processed.")
    ] = 20_000,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once.")] = 100,
    rivals: Annotated[
        bool,
        typer.Option("--rivals", help="In a checkout of toril: all its benchmarks, beside other libraries."),
    ] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast jobs are added, taken and processed here, in one process."""
    if rivals:
        raise typer.Exit(_beside_others(as_json=as_json))
    target = Target.of(redis, prefix)
    with in_progress("measuring"):
        figures = asyncio.run(_measure(target, jobs, concurrency))
    if as_json:
        emit({"server": target.server, "jobs": jobs, "concurrency": concurrency, **figures})
        return
    rows = [
        ("jobs added in bulk", f"{figures['bulk_added_per_second']:,.0f} /s"),
        ("jobs added one by one", f"{figures['added_per_second']:,.0f} /s"),
        ("jobs processed", f"{figures['processed_per_second']:,.0f} /s"),
        ("from add to handler, median", seconds(figures["start_p50_seconds"])),
        ("from add to handler, p99", seconds(figures["start_p99_seconds"])),
    ]
    show(["what", "how much"], rows, right=["how much"])
    say(f"{jobs} jobs, {concurrency} at once, in one process, on {target.server}")


def _beside_others(*, as_json: bool) -> int:
    if as_json:
        raise TorilError("the benchmarks write their JSON to a file: python -m benchmarks --json FILE")
    if not Path("benchmarks/__main__.py").exists():
        raise TorilError("there are no benchmarks here; run it in a checkout of toril")
    return subprocess.run([sys.executable, "-m", "benchmarks"], check=False).returncode


async def _measure(target: Target, jobs: int, concurrency: int) -> dict[str, float]:
    name = f"toril-bench-{uuid.uuid4().hex[:8]}"
    there: dict[str, Any] = {"redis": target.redis, "prefix": target.prefix_of("bullmq")}
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(Queue(name, **there))
        stack.push_async_callback(queue.obliterate, force=True)
        figures = {"bulk_added_per_second": await _bulk(queue, jobs)}
        figures["processed_per_second"] = await _processing(name, there, jobs, concurrency)
        return figures | await _alone(queue, name, there)


async def _bulk(queue: Queue, jobs: int) -> float:
    began = time.perf_counter()
    for start in range(0, jobs, PART):
        await queue.add_bulk([("work", {"n": start})] * min(PART, jobs - start))
    return jobs / (time.perf_counter() - began)


async def _processing(name: str, there: dict[str, Any], jobs: int, concurrency: int) -> float:
    left, done = jobs, asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with Worker(name, handle, concurrency=concurrency, logger=_SILENT, **there):
        began = time.perf_counter()
        await done.wait()
        return jobs / (time.perf_counter() - began)


async def _alone(queue: Queue, name: str, there: dict[str, Any]) -> dict[str, float]:
    started: asyncio.Queue[float] = asyncio.Queue()
    waits, adding = [], 0.0

    async def handle(_: Job[Any]) -> None:
        started.put_nowait(time.perf_counter())

    async with Worker(name, handle, logger=_SILENT, **there):
        for _ in range(ALONE):
            began = time.perf_counter()
            await queue.add("work", {})
            adding += time.perf_counter() - began
            waits.append(await started.get() - began)
    return {
        "added_per_second": ALONE / adding,
        "start_p50_seconds": statistics.median(waits),
        "start_p99_seconds": statistics.quantiles(waits, n=100)[98],
    }
