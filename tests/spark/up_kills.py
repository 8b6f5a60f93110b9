"""A pipeline that is up under load, whose Java, Python workers and driver are killed at random moments:
`python -m tests.spark.up_kills [SECONDS] [RATE] [SEED]`.

Jobs are added and finished by the real scripts at an even pace, with BullMQ's default trimming: at 500 jobs a second
the events of five seconds are kept. A driver that was killed is started again at once. In the end every event is in the
table once or is counted as lost, to the unit; how many were lost, and after which kill, is printed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.long_run import DEFAULT_EVENTS, PREFIX, QUEUE, await_reading, keep_pace, read_so_far
from toril.lake import Lake

APART = (12.0, 25.0)  # seconds between two kills
VICTIMS = ("java", "python worker", "driver")


class Killer:
    """Keeps a pipeline up and kills parts of it."""

    def __init__(self, url: str, folder: Path, queue: Factory, seed: int) -> None:
        self.lake, self.url, self.queue = folder / "lake", url, queue
        self.chance = random.Random(seed)
        self.log = (folder / "pipeline.log").open("ab")
        self.kills: Counter[str] = Counter()
        self.slowest = 0.0
        self.child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.spark.long_run", "--pipeline", self.url, str(self.lake)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.chance.uniform(*APART)):
            self._kill(VICTIMS[self.kills.total() % len(VICTIMS)])

    def _kill(self, victim: str) -> None:
        found = self._find(victim)
        if found is None:
            return  # it is being started
        lost, goal = lost_in(self.lake), self.queue.entries_added
        found.kill()
        began = time.monotonic()
        if victim == "driver":
            self.child.wait()
            self.child = self._start()
        self.kills[victim] += 1
        while read_so_far(self.lake) <= goal:
            time.sleep(0.05)
        back = time.monotonic() - began
        self.slowest = max(self.slowest, back)
        now = lost_in(self.lake)
        print(f"{victim} killed: events go on after {back:.1f} s, {now - lost} lost", flush=True)

    def _find(self, victim: str) -> psutil.Process | None:
        driver = psutil.Process(self.child.pid)
        if victim == "driver":
            return driver
        word = "SparkSubmit" if victim == "java" else "pyspark.daemon"
        return next((one for one in driver.children(recursive=True) if word in _words(one)), None)

    def end(self) -> None:
        self.child.communicate(timeout=120)
        self.log.close()


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lost_in(lake: Path) -> int:
    found = Lake(lake).query("select coalesce(sum(lost), 0)::bigint as lost from bronze.events").to_pylist()
    return int(found[0]["lost"])


def check(lake: Path, queue: Factory) -> None:
    sql = "select count(*) as n, count(distinct id) as ids from bronze.events where lost is null"
    found, lost = Lake(lake).query(sql).to_pylist()[0], lost_in(lake)
    print(f"{queue.entries_added} events added: {found['n']} stored, {lost} counted as lost", flush=True)
    assert found["n"] == found["ids"], "an event is stored twice"
    assert found["n"] + lost == queue.entries_added, "an event is neither stored nor counted"


def main(seconds: str = "180", rate: str = "500", seed: str = "1") -> None:
    with Server.valkey() as server, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Factory(server.url, QUEUE, PREFIX, events_max_len=DEFAULT_EVENTS) as queue:
            queue.add(10)
            queue.work()
            killer, stop = Killer(server.url, folder, queue, int(seed)), threading.Event()
            await_reading(killer.lake, queue.entries_added, 120)
            thread = threading.Thread(target=killer.run, args=(stop,))
            thread.start()
            worst = keep_pace(queue, float(seconds), float(rate))
            stop.set()
            thread.join()
            await_reading(killer.lake, queue.entries_added, 120)
            killer.end()
            print(
                f"{queue.added} jobs, at most {worst:.2f} s behind the pace; {dict(killer.kills)}", flush=True
            )
            print(f"slowest return of ingest: {killer.slowest:.1f} s", flush=True)
            check(killer.lake, queue)
            print((folder / "pipeline.log").read_text(errors="replace")[-3000:], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
