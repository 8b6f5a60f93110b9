"""`python -m benchmarks.spark`: the Spark connector and the pipeline beside raw redis-py, in the same run.

Compare ratios only: rates depend on the machine. Sizes: `--events 500000 --jobs 200000 --rows 100000`.
`--growth jobs` and `--growth queues` measure rates by size instead, and write the plots to docs/performance.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import SparkSession

from benchmarks.spark_growth import (
    PREFIX,
    CatchUp,
    catch_up,
    fill_events,
    measure_growth,
    timed,
    write_results,
)
from tests.servers import Server
from toril.commands.add import JobToAdd, add_job
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.session import build_session, own_session

PLOTS = Path(__file__).parents[1] / "docs" / "performance"


@dataclass(frozen=True, slots=True)
class Figure:
    """One comparison: what, rate of toril, rate of raw redis-py, and the target."""

    what: str
    rate: float
    raw: float
    target: float | None = None  # as a share of the raw rate

    @property
    def ratio(self) -> float:
        return self.rate / self.raw if self.raw else 0.0

    def __str__(self) -> str:
        target = f", target {self.target:.2f}" if self.target else ""
        return (
            f"{self.what:34s} {self.rate:10,.0f}/s   raw {self.raw:10,.0f}/s   ratio {self.ratio:.2f}{target}"
        )


def raw_events(client: redis.Redis, queue: str) -> int:
    key, after, count = QueueKeys(queue, PREFIX).events, b"-", 0
    run: Any = client.execute_command
    while page := run("XRANGE", key, after, "+", "COUNT", 5000):
        count += len(page)
        after = b"(" + page[-1][0]
    return count


def measure_pipeline(
    spark: SparkSession, server: Server, client: redis.Redis, events: int, runs: int = 3
) -> list[Figure]:
    count = fill_events(client, "events", events // 4, hashes=True)
    raw = count / timed(lambda: raw_events(client, "events"))
    plain, filled = (
        median_run([catch_up(spark, server.url, events // 4, 1, snapshots) for _ in range(runs)])
        for snapshots in ("none", "all")
    )
    return [
        Figure("events ingested to Delta", count / plain.ingest, raw, 0.25),
        Figure("whole pipeline (goal 40,000/s)", plain.rate, raw),
        Figure("the same, a hash kept per job", filled.rate, raw),
    ]


def median_run(runs: Sequence[CatchUp]) -> CatchUp:
    """Prints all runs and returns the one with the median rate."""
    for one in runs:
        print(f"{one.rate:9,.0f} events/s  {one}", flush=True)
    return sorted(runs, key=lambda one: one.rate)[len(runs) // 2]


def fill_jobs(client: redis.Redis, queue: str, count: int) -> None:
    keys = QueueKeys(queue, PREFIX)
    for start in range(0, count, 1000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 1000, count)):
            job = str(uuid.uuid4())
            fields: dict[Any, Any] = {
                "name": "send",
                "data": f'{{"n":{number}}}',
                "opts": '{"attempts":3}',
                "timestamp": 1700000000000,
            }
            pipe.hset(
                keys.job(job), mapping=fields | {"delay": 0, "priority": 0, "atm": 1, "ats": 1, "pb": "w-1"}
            )
            pipe.lpush(keys.wait, job)
        pipe.execute()
    client.hset(keys.meta, "version", "bullmq:5.62.0")


def raw_jobs(client: redis.Redis, queue: str) -> int:
    keys = QueueKeys(queue, PREFIX)
    ids: list[Any] = client.lrange(keys.wait, 0, -1)
    for start in range(0, len(ids), 1000):
        pipe = client.pipeline(transaction=False)
        for job in ids[start : start + 1000]:
            pipe.hgetall(keys.job(job.decode()))
        pipe.execute()
    return len(ids)


def measure_jobs(spark: SparkSession, server: Server, client: redis.Redis, count: int) -> Figure:
    fill_jobs(client, "jobs", count)
    options = {"url": server.url, "prefix": PREFIX, "table": "jobs", "queues": "jobs"}

    def read() -> None:
        frame = spark.read.format("toril").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()

    return compared("jobs read", count, read, lambda: raw_jobs(client, "jobs"), 0.8)


def measure_job_by_id(spark: SparkSession, server: Server, client: redis.Redis) -> Figure:
    """Reads of one job of the queue that `measure_jobs` filled, beside reads of all of them, per second."""
    options = {"url": server.url, "prefix": PREFIX, "table": "jobs", "queues": "jobs"}
    ids: list[Any] = client.lrange(QueueKeys("jobs", PREFIX).wait, 0, 0)

    def read(**more: str) -> None:
        rows = spark.read.format("toril").options(**options, **more).load()
        rows.write.format("noop").mode("overwrite").save()

    return compared("one job by id (raw: all jobs)", 1, lambda: read(ids=ids[0].decode()), read, 10.0)


def compared(
    what: str, count: int, ours: Callable[[], object], raw: Callable[[], object], target: float
) -> Figure:
    """Compares the medians of three alternating runs of each side."""
    pairs = [(timed(raw), timed(ours)) for _ in range(3)]
    rates = [count / sorted(times)[1] for times in zip(*pairs, strict=True)]
    return Figure(what, rates[1], rates[0], target)


def raw_enqueue(client: redis.Redis, count: int) -> None:
    """Adds jobs with one official script call per job, 1,000 per pipeline."""
    keys = QueueKeys("raw", PREFIX)
    for start in range(0, count, 1000):
        pipe = client.pipeline(transaction=False)
        run: Any = pipe.execute_command
        for number in range(start, min(start + 1000, count)):
            job = JobToAdd(
                name="send",
                data=b'{"n":%d}' % number,
                options={"attempts": 3},
                timestamp=0,
                id=str(uuid.uuid4()),
            )
            command = add_job(keys, job)
            run(*(command.eval() if number == 0 else command.evalsha()))
        pipe.execute()


def measure_enqueue(spark: SparkSession, server: Server, client: redis.Redis, count: int) -> Figure:
    rows = spark.range(0, count, 1, 2).selectExpr("'send' as name", "named_struct('n', id) as data")
    writer = rows.write.format("toril").options(url=server.url, prefix=PREFIX, queue="rows").mode("append")
    return compared("rows enqueued", count, writer.save, lambda: raw_enqueue(client, count), 1.0)


def warm_up(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    """Starts Python workers and compiles plans before the measurements."""
    measure_pipeline(spark, server, client, 100_000, runs=1)
    client.flushall()
    measure_jobs(spark, server, client, 10_000)
    measure_enqueue(spark, server, client, 10_000)
    client.flushall()


def compare(spark: SparkSession, server: Server, client: redis.Redis, given: argparse.Namespace) -> None:
    """Measures and prints all comparisons with raw redis-py."""
    figures = measure_pipeline(spark, server, client, given.events)
    client.flushall()
    figures.append(measure_jobs(spark, server, client, given.jobs))
    figures.append(measure_job_by_id(spark, server, client))
    figures.append(measure_enqueue(spark, server, client, given.rows))
    for figure in figures:
        print(figure)
    if given.json:
        rows = [{"what": one.what, "rate": one.rate, "raw": one.raw, "ratio": one.ratio} for one in figures]
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--growth", choices=("jobs", "queues"))
    return parser.parse_args()


def main() -> None:
    given = parsed()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    base = build_session("local[2]", memory="2g")
    base.sparkContext.setLogLevel("OFF")
    spark = own_session(base)
    with Server.valkey() as server, server.client() as client:
        client.response_callbacks.pop("XRANGE", None)
        warm_up(spark, server, client)
        if given.growth:
            print(write_results(measure_growth(spark, server, client, given.growth), given.growth, PLOTS))
        else:
            compare(spark, server, client, given)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    base.stop()


if __name__ == "__main__":
    main()
