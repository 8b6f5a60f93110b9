"""Fifteen hundred jobs a second for five minutes on one queue with default trimming, and no event is lost:
`python -m tests.spark.long_run [SECONDS] [RATE]`.

BullMQ keeps 10,000 events of a queue, which is some 1.7 s at this rate: the pipeline must look more often than that,
also while it refines. Jobs are added and finished by the real scripts, at an even pace; the pipeline is a process of
its own. At the end the tables are compared with the count that the factory kept.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.servers import Server
from tests.spark.factory import Factory
from toril.lake import Lake

PREFIX, QUEUE = "run", "steady"
DEFAULT_EVENTS = 10_000  # what BullMQ keeps of a queue's events unless told otherwise
TICK = 0.05  # seconds


def pipeline(url: str, lake: str, prefix: str = PREFIX, checkpoint: str | None = None) -> None:
    """The child: a pipeline that is up until its input ends."""
    from toril.spark.pipeline import Pipeline, PipelineOptions

    options = PipelineOptions(
        redis=url, prefix=prefix, queues=QUEUE, lake=lake, streams="", checkpoint=checkpoint
    )
    stop = threading.Event()
    threading.Thread(target=_set_at_the_end, args=(stop,), daemon=True).start()
    Pipeline(options).up(stop, lambda progress: print(progress, flush=True))


def _set_at_the_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def commits_apart(lake: Path) -> list[float]:
    """Seconds between two commits of events, in order of size: what the trimming must not be faster than."""
    log = Lake(lake).table("bronze/events")
    times = sorted(int(one["timestamp"]) for one in log.delta.history())
    return sorted((b - a) / 1000 for a, b in itertools.pairwise(times))


def keep_pace(queue: Factory, seconds: float, rate: float, over: threading.Event | None = None) -> float:
    """Adds and finishes jobs at an even pace until `over` is set; the result is the longest time it fell behind."""
    began, done, worst = time.monotonic(), 0, 0.0
    over = over or threading.Event()
    while (now := time.monotonic() - began) < seconds and not over.is_set():
        due = int(now * rate) - done
        worst = max(worst, now - done / rate)
        if due:
            queue.add(due)
            queue.work(batch=due, fail=0.02, retry=0.02)
            done += due
        time.sleep(max(0.0, TICK - (time.monotonic() - began - now)))
    return worst


def read_so_far(lake: Path) -> int:
    """How far the tables have read, by the position committed with the events."""
    from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position

    return committed_position(Lake(lake).ensure(TABLE), QUEUE).n or 0


def await_reading(lake: Path, goal: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while read_so_far(lake) < goal:
        assert time.monotonic() < deadline, f"{read_so_far(lake)} of {goal} events were read"
        time.sleep(0.1)


def check(lake: Path, queue: Factory, url: str) -> None:
    """After a last `run_once`: no gap, and every attempt is there."""
    from toril.spark.pipeline import Pipeline, PipelineOptions

    last = Pipeline(PipelineOptions(redis=url, prefix=PREFIX, queues=QUEUE, lake=lake, streams=""))
    last.spark.sparkContext.setLogLevel("OFF")
    print(last.run_once(), flush=True)
    found = last.query(
        "select count(*) as n, count(distinct id) as ids, coalesce(sum(lost), 0)::bigint as lost from bronze.events"
    ).to_pylist()[0]
    outcomes = last.query("select outcome, count(*) as n from silver.attempts group by 1").to_pylist()
    print(json.dumps({**found, "added": queue.entries_added, "outcomes": outcomes}), flush=True)
    assert found == {"n": queue.entries_added, "ids": queue.entries_added, "lost": 0}
    assert {row["outcome"]: row["n"] for row in outcomes} == queue.outcomes


def main(seconds: str = "300", rate: str = "1500") -> None:
    with Server.valkey() as server, tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        with Factory(server.url, QUEUE, PREFIX, events_max_len=DEFAULT_EVENTS) as queue:
            queue.add(10)
            queue.work()
            words = [sys.executable, "-m", "tests.spark.long_run", "--pipeline", server.url, str(lake)]
            with (Path(folder) / "pipeline.log").open("w+") as log:
                child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)
                await_reading(lake, queue.entries_added, 120)
                worst = keep_pace(queue, float(seconds), float(rate))
                print(
                    f"{queue.added} jobs added and finished, at most {worst:.2f} s behind the pace",
                    flush=True,
                )
                await_reading(lake, queue.entries_added, 60)
                child.communicate()
                apart = commits_apart(lake)
                print(
                    f"{len(apart)} commits, apart {apart[len(apart) // 2]:.2f} s in the middle, "
                    f"{apart[len(apart) * 99 // 100]:.2f} s p99, {apart[-3:]} at worst",
                    flush=True,
                )
                log.seek(0)
                print(log.read()[-1500:], flush=True)
            check(lake, queue, server.url)
            print(
                f"{queue.entries_added} events, {queue.outcomes.total()} attempts: all there, gaps 0",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pipeline"]:
        pipeline(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
