"""Measures the pipeline by size: 10,000 to 1,000,000 jobs, and 1 to 100 queues.

Guarantee: every point is a separate run that starts with an empty lake, in a session that has run before. A level or
rising line means that time grows in proportion to the events, or more slowly.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import redis
from pyspark.sql import SparkSession

from benchmarks.plots import lines
from tests.servers import Server
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline import Pipeline, PipelineOptions

PREFIX = "bench"
SIZES = (10_000, 100_000, 1_000_000)  # jobs on one queue
QUEUES = (1, 10, 100)  # queues that share the same number of jobs
SHARED_JOBS = 100_000

# Writes the events of completed jobs (added, waiting, active, completed) on the server; optionally also their hashes.
_FILL = """
local call = redis.call
for n = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local job = string.sub(redis.sha1hex(KEYS[1] .. n), 1, 32)
  call('XADD', KEYS[1], '*', 'event', 'added', 'jobId', job, 'name', 'send')
  call('XADD', KEYS[1], '*', 'event', 'waiting', 'jobId', job)
  call('XADD', KEYS[1], '*', 'event', 'active', 'jobId', job, 'prev', 'waiting')
  call('XADD', KEYS[1], '*', 'event', 'completed', 'jobId', job, 'returnvalue', 'null', 'prev', 'active')
  if ARGV[3] == '1' then
    call('HSET', ARGV[4] .. job, 'name', 'send', 'data', '{"n":1}', 'opts', '{"attempts":3}', 'timestamp', 1,
      'pb', 'w-1', 'ats', 1, 'atm', 1, 'processedOn', 1, 'finishedOn', 2, 'returnvalue', 'null')
  end
end
"""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One run of the pipeline over all stored events: sizes, and the seconds of each step."""

    jobs: int
    queues: int
    events: int
    ingest: float
    refine: float
    gold: float

    @property
    def rate(self) -> float:
        return self.events / (self.ingest + self.refine + self.gold)


def fill_events(client: redis.Redis, queue: str, jobs: int, *, hashes: bool = False) -> int:
    """Writes the events of `jobs` jobs, 1,000 jobs per call; returns the number of events."""
    keys = QueueKeys(queue, PREFIX)
    run = client.register_script(_FILL)
    for start in range(0, jobs, 1_000):
        last = min(start + 1_000, jobs)
        run(keys=[keys.events], args=(str(start), str(last), str(int(hashes)), keys.base))
    client.hset(keys.meta, "version", "bullmq:5.62.0")
    return jobs * 4


def timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def catch_up(spark: SparkSession, url: str, jobs: int, queues: int, snapshots: str = "none") -> CatchUp:
    """Runs the whole pipeline over everything in Redis, into a new lake."""
    with tempfile.TemporaryDirectory() as folder:
        options = PipelineOptions(redis=url, prefix=PREFIX, lake=Path(folder), snapshots=snapshots)
        pipeline = Pipeline(options, spark=spark)
        steps = [timed(step) for step in (pipeline.ingest, pipeline.refine, pipeline.gold)]
        found = pipeline.query("select sum(attempts)::bigint as n from gold.queue_hour").to_pylist()
    assert found == [{"n": jobs}], found
    return CatchUp(jobs, queues, jobs * 4, *steps)


def measure_growth(spark: SparkSession, server: Server, client: redis.Redis, what: str) -> list[CatchUp]:
    """Runs one series of sizes, smallest first."""
    plan = [(size, 1) for size in SIZES] if what == "jobs" else [(SHARED_JOBS, count) for count in QUEUES]
    found = []
    for jobs, queues in plan:
        client.flushall()
        for number in range(queues):
            fill_events(client, f"q{number}", jobs // queues)
        found.append(catch_up(spark, server.url, jobs, queues))
        print(f"{jobs:9,} jobs, {queues:3} queues: {found[-1].rate:9,.0f} events/s  {found[-1]}", flush=True)
    return found


def write_results(found: Sequence[CatchUp], what: str, folder: Path) -> Path:
    """Writes the figures and their plot; returns the path of the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(one), "rate": round(one.rate)} for one in found]
    load = round(os.getloadavg()[0], 1)
    (folder / f"spark-by-{what}.json").write_text(json.dumps({"load": load, "points": rows}, indent=1))
    across = "jobs on one queue" if what == "jobs" else f"queues that share {SHARED_JOBS:,} jobs"
    series = {"whole pipeline": [(float(getattr(one, what)), one.rate) for one in found]}
    for step in ("ingest", "refine"):  # gold depends on the time range of the jobs, not on their number
        series[step] = [(float(getattr(one, what)), one.events / getattr(one, step)) for one in found]
    target = folder / f"spark-by-{what}.svg"
    target.write_text(lines("pipeline, Redis to gold", across, "events/s", series), encoding="utf-8")
    return target
