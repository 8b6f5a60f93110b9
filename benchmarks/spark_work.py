"""`python -m benchmarks.spark_work`: jobs on Spark's executors beside plain workers, in the same run.

Guarantee: both sides process the same jobs of one server and alternate; the session of Spark is warm (`local[2,4]`). A
ratio is computed per round; the median of the ratios is the result. `--growth` measures rates by the number of jobs
instead, and writes the plot to docs/performance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.plots import lines
from tests.servers import Server
from toril import Worker, sync
from toril.jobs import Job
from toril.spark import SparkWorker
from toril.spark.pipeline.session import build_session

PLOTS: Final = Path(__file__).parents[1] / "docs" / "performance"
QUEUE: Final = "work"
TREES, DEPTH, FEATURES = 46, 6, 20  # of the model
SIZES: Final = (10_000, 100_000, 1_000_000)
# Least ratio to the plain workers.
TARGETS: Final = {"no-op, loop": 0.9, "no-op, rows": 0.4, "model, loop": 5.0}
Measure = Callable[[int], float]  # jobs → seconds


# --- handlers ------------------------------------------------------------------------------------------------


async def nothing(job: Job[Any]) -> None:
    """A handler that does nothing."""


def nothing_arrow(batch: pa.Table) -> list[None]:
    return [None] * batch.num_rows


def nothing_rows(rows: DataFrame) -> DataFrame:
    return rows.withColumn("result", F.lit(1))


class Model:
    """A boosted ensemble of trees: a row alone takes about a millisecond, mostly calls of numpy, which rows share."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        inner = 2**DEPTH - 1
        self.input = random.normal(size=FEATURES)
        self.features = random.integers(0, FEATURES, size=(TREES, inner))
        self.thresholds = random.normal(size=(TREES, inner))
        self.leaves = random.normal(size=(TREES, inner + 1))

    def __call__(self, xs: Sequence[float]) -> list[float]:
        rows = np.outer(np.asarray(xs), self.input)
        numbers = np.arange(len(rows))
        total = np.zeros(len(rows))
        for features, thresholds, leaves in zip(self.features, self.thresholds, self.leaves, strict=True):
            node = np.zeros(len(rows), dtype=np.int64)
            for _ in range(DEPTH):
                node = 2 * node + 1 + (rows[numbers, features[node]] > thresholds[node])
            total += leaves[node - len(thresholds)]
        return [float(one) for one in total]


_models: list[Model] = []  # of this process


def model() -> Model:
    if not _models:
        _models.append(Model())
    return _models[0]


async def score(job: Job[Any]) -> float:
    return model()([job.data["x"]])[0]


def score_arrow(batch: pa.Table) -> list[float]:
    from benchmarks.spark_work import model  # the process of an executor keeps it between batches

    return model()(batch["data"].combine_chunks().field("x").to_pylist())


# --- both sides ----------------------------------------------------------------------------------------------


def fill(queue: sync.Queue, jobs: int) -> None:
    for start in range(0, jobs, 10_000):
        queue.add_bulk([("score", {"x": n % 97}) for n in range(start, min(start + 10_000, jobs))])


def check_done(queue: sync.Queue, jobs: int) -> None:
    counts = queue.get_job_counts()
    if (counts.completed, counts.active, counts.waiting) != (jobs, 0, 0):
        raise SystemExit(f"of {jobs} jobs: {counts}")
    queue.obliterate(force=True)


def plain(url: str, handler: Any, processes: int, concurrency: int) -> Measure:
    """Plain workers that are ready before the jobs are released."""

    def measure(jobs: int) -> float:
        context = multiprocessing.get_context("spawn")
        with sync.Queue(QUEUE, redis=url) as queue, ExitStack() as running:
            queue.pause()
            fill(queue, jobs)
            for _ in range(processes):
                ready = context.Event()
                process = context.Process(target=serve, args=(url, handler, concurrency, ready), daemon=True)
                process.start()
                running.callback(process.join)
                running.callback(process.terminate)
                ready.wait(60)
            began = time.monotonic()
            queue.resume()
            while queue.get_job_counts().completed < jobs:
                time.sleep(0.02)
            seconds = time.monotonic() - began
            running.close()
            check_done(queue, jobs)
        return seconds

    return measure


def serve(url: str, handler: Any, concurrency: int, ready: Any) -> None:
    """A worker in a process of its own."""

    async def run() -> None:
        model()
        async with Worker(QUEUE, handler, redis=url, concurrency=concurrency) as worker:
            ready.set()
            await worker.wait_stopped()

    asyncio.run(run())


def on_spark(spark: SparkSession, url: str, handler: Any, *, workers: int, **options: Any) -> Measure:
    """A worker on Spark that is ready before the jobs are released; `workers` of it are seen at the queue then."""

    def measure(jobs: int) -> float:
        worker = SparkWorker(QUEUE, handler, spark=spark, redis=url, missing="ignore", **options)
        running = threading.Thread(target=worker.run)
        with sync.Queue(QUEUE, redis=url) as queue:
            queue.pause()
            fill(queue, jobs)
            running.start()
            while len(queue.get_workers()) < workers:
                time.sleep(0.05)
            began = time.monotonic()
            queue.resume()
            while queue.get_job_counts().completed < jobs:
                time.sleep(0.02)
            seconds = time.monotonic() - began
            worker.stop()
            running.join()
            check_done(queue, jobs)
        return seconds

    return measure


# --- comparisons ---------------------------------------------------------------------------------------------


def compare(what: str, spark: Measure, beside: Measure, jobs: int, rounds: int) -> bool:
    """Measures both sides in turns and prints the median; whether the target is met."""
    spark(min(jobs, 2_000))  # the first run starts Python on the executors
    ratios = []
    for number in range(rounds):
        sides = {"spark": spark, "plain": beside}
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        seconds = {side: sides[side](jobs) for side in order}
        ratios.append(seconds["plain"] / seconds["spark"])
        rates = ", ".join(f"{side} {jobs / seconds[side]:,.0f}/s" for side in sides)
        print(f"  {what}: {rates}: {ratios[-1]:.2f} ×", flush=True)
    ratio = statistics.median(ratios)
    print(f"{what}, {jobs} jobs: {ratio:.2f} ×, target {TARGETS[what]}", flush=True)
    return ratio >= TARGETS[what]


def measure_growth(
    measures: dict[str, Measure], sizes: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for what, measure in measures.items():
        measure(2_000)
        for jobs in sizes:
            rate = jobs / measure(jobs)
            found.setdefault(what, []).append((float(jobs), rate))
            print(f"{what}: {jobs:9,} jobs {rate:9,.0f}/s", flush=True)
    return found


def write_growth(found: dict[str, list[tuple[float, float]]]) -> None:
    load = round(os.getloadavg()[0], 1)
    (PLOTS / "spark-work-by-jobs.json").write_text(json.dumps({"load": load, "points": found}, indent=1))
    plot = lines("no-op jobs on Spark", "jobs on one queue", "jobs/s", found)
    (PLOTS / "spark-work-by-jobs.svg").write_text(plot, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_work", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="no-op jobs of a round")
    parser.add_argument("--scored", type=int, default=10_000, help="jobs of a round for the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=TARGETS, nargs="+", default=list(TARGETS), help="comparisons")
    parser.add_argument("--growth", type=int, nargs="*", metavar="JOBS", help="sizes instead of comparisons")
    parser.add_argument("--assert", dest="check", action="store_true", help="fail when a target is missed")
    options = parser.parse_args(arguments)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that it starts: two of them share two cores
    spark = build_session("local[2,4]")
    with Server.valkey() as server:
        loop = on_spark(spark, server.url, nothing_arrow, workers=2, takes="arrow", tasks=2)
        rows = on_spark(spark, server.url, nothing_rows, workers=1, takes="dataframe", max_jobs=25_000)
        if options.growth is not None:
            write_growth(measure_growth({"loop": loop, "rows": rows}, options.growth or SIZES))
            return 0
        parsed = {"takes": "arrow", "data_schema": "x double", "tasks": 2}
        scored = on_spark(spark, server.url, score_arrow, workers=2, **parsed)
        one = plain(server.url, nothing, processes=1, concurrency=100)
        two = plain(server.url, score, processes=2, concurrency=10)
        sides = {
            "no-op, loop": (loop, one, options.jobs),
            "no-op, rows": (rows, one, options.jobs),
            "model, loop": (scored, two, options.scored),
        }
        met = [compare(what, *sides[what], options.rounds) for what in options.only]
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
