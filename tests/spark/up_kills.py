"""A pipeline that is up under load, whose processes are killed in the middle of commits:
`python -m tests.spark.up_kills [ROUNDS] [RATE] [SEED] [checkpoint]`.

Jobs are added and finished by the real scripts at an even pace, with BullMQ's default trimming: at 500 jobs a second
the events of five seconds are kept. Each round kills the driver, a Python worker and Java, and with a checkpoint the
Python process that plans micro-batches, at the moment when a data file of a commit is written and the commit is not. A
driver that was killed is started again at once. In the end every event is in the table once or is counted as lost, to
the unit; if none was lost, every attempt is there too. How many were lost after which kill is printed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.long_run import DEFAULT_EVENTS, PREFIX, QUEUE, await_reading, keep_pace, read_so_far
from toril.lake import Lake

PAUSES = (3.0, 10.0)  # seconds before a kill
# What is killed: a word of its command line, and the table whose commit it is killed in.
VICTIMS: Final = {
    "driver": ("", "bronze/events"),
    "python worker": ("pyspark.daemon", "silver"),
    "java": ("SparkSubmit", "silver"),
    "source runner": ("python_streaming_source_runner", "bronze/events"),
}
# Whatever the reason: a query that is being started fails in other words than one that runs.
END_OF_QUERY: Final = "ingest ended, next start in"
END_A_QUERY: Final = ("java", "source runner")
WITHOUT_CHECKPOINT: Final = ("driver", "python worker", "java")


class Killer:
    """Keeps a pipeline up and kills parts of it."""

    def __init__(self, url: str, folder: Path, queue: Factory, *, checkpoint: bool = False) -> None:
        self.lake, self.url, self.queue = folder / "lake", url, queue
        self.checkpoint = [str(folder / "checkpoint")] if checkpoint else []
        self.said = folder / "pipeline.log"
        self.kills: Counter[str] = Counter()
        self.slowest = 0.0
        self.load: Future[float] | None = None
        self.child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.spark.long_run", "--pipeline", self.url, str(self.lake)]
        with self.said.open("ab") as log:
            return subprocess.Popen(
                [*words, self.queue.prefix, *self.checkpoint], stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Java ends when the pipe to its driver does."""
        self.child.kill()
        self.child.communicate()

    def kill(self, victim: str) -> None:
        """Kills a process in the middle of a commit, and waits until events are stored that came after it."""
        word, table = VICTIMS[victim]
        before, ends = lost_in(self.lake), self._ends_of_query()
        if victim == "source runner":  # of a query that works: it is started before Spark knows it
            batches = self._batches_of_query()
            until(lambda: self._batches_of_query() > batches, 0.1)
        process = self._killed(word, table)
        began, goal = time.monotonic(), self.queue.entries_added
        if process.pid == self.child.pid:
            self.child.communicate()
            self.child = self._start()
        self.kills[victim] += 1
        until(lambda: self._is_loaded() and read_so_far(self.lake) > goal, 0.05)
        back = time.monotonic() - began
        self.slowest = max(self.slowest, back)
        if self.checkpoint and victim in END_A_QUERY:  # it may notice it later than events go on
            until(lambda: self._ends_of_query() > ends, 0.1)
        print(
            f"{victim} killed: events go on after {back:.1f} s, {lost_in(self.lake) - before} lost",
            flush=True,
        )

    def _killed(self, word: str, table: str) -> psutil.Process:
        """The process, killed as soon as the table has another data file; it may end by itself before."""
        while True:
            until(lambda: self._find(word) is not None, 0.1)
            found = self._find(word)
            await_data_file(self.lake / table)
            if found is not None and found.is_running():
                with suppress(psutil.NoSuchProcess):
                    found.kill()
                    return found

    def _is_loaded(self) -> bool:
        """Whether jobs are still added; what ended them is raised."""
        if self.load is not None and self.load.done():
            self.load.result()
        return True

    def _batches_of_query(self) -> int:
        """The number of its last batch; Spark removes the files of old ones."""
        files = [file for place in self.checkpoint for file in Path(place, "commits").glob("[0-9]*")]
        return max((int(file.name) for file in files), default=-1)

    def _ends_of_query(self) -> int:
        return self.said.read_text(errors="replace").count(END_OF_QUERY)

    def _find(self, word: str) -> psutil.Process | None:
        driver = psutil.Process(self.child.pid)
        if not word:
            return driver
        return next((one for one in driver.children(recursive=True) if word in _words(one)), None)

    def end(self) -> None:
        """Ends the pipeline when all that was added is stored."""
        await_reading(self.lake, self.queue.entries_added, 120)
        if not lost_in(self.lake):
            until(lambda: outcomes_in(self.lake) == self.queue.outcomes, 0.5)
        self.child.communicate(timeout=120)
        check(self.lake, self.queue)


def until(condition: Callable[[], bool], pause: float, seconds: float = 600.0) -> None:
    """A busy machine needs minutes to start Spark and its first query."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(pause)


def await_data_file(folder: Path) -> None:
    """Until there is one more: it is written before the commit that names it."""
    here = data_files(folder)
    until(lambda: data_files(folder) > here, 0.001)


def data_files(folder: Path) -> int:
    return sum(1 for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lost_in(lake: Path) -> int:
    found = Lake(lake).query("select coalesce(sum(lost), 0)::bigint as lost from bronze.events").to_pylist()
    return int(found[0]["lost"])


def outcomes_in(lake: Path) -> dict[str, int]:
    found = Lake(lake).query("select outcome, count(*) as n from silver.attempts group by 1").to_pylist()
    return {row["outcome"]: row["n"] for row in found}


def check(lake: Path, queue: Factory) -> None:
    sql = "select count(*) as n, count(distinct id) as ids from bronze.events where lost is null"
    found, lost = Lake(lake).query(sql).to_pylist()[0], lost_in(lake)
    print(f"{queue.entries_added} events added: {found['n']} stored, {lost} counted as lost", flush=True)
    assert found["n"] == found["ids"], "an event is stored twice"
    assert found["n"] + lost == queue.entries_added, "an event is neither stored nor counted"


def kill_under_load(
    killer: Killer, victims: Sequence[str], rate: float, pause: Callable[[], float] = lambda: 0.0
) -> None:
    """Kills one after another while jobs are added and finished, and then compares the tables with the jobs."""
    over, queue = threading.Event(), killer.queue
    with ThreadPoolExecutor(1) as load:
        killer.load = worst = load.submit(keep_pace, queue, float("inf"), rate, over)
        try:
            for victim in victims:
                over.wait(pause())
                killer.kill(victim)
        finally:
            over.set()
    killer.end()
    print(f"{queue.added} jobs, at most {worst.result():.2f} s behind the pace", flush=True)
    print(f"{dict(killer.kills)}; slowest return of ingest: {killer.slowest:.1f} s", flush=True)


def main(rounds: str = "4", rate: str = "500", seed: str = "1", checkpoint: str = "") -> None:
    chance = random.Random(int(seed))
    victims = tuple(VICTIMS) if checkpoint else WITHOUT_CHECKPOINT
    with Server.valkey() as server, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with (
            Factory(server.url, QUEUE, PREFIX, events_max_len=DEFAULT_EVENTS) as queue,
            Killer(server.url, folder, queue, checkpoint=bool(checkpoint)) as killer,
        ):
            kill_under_load(killer, victims * int(rounds), float(rate), lambda: chance.uniform(*PAUSES))
            print(killer.said.read_text(errors="replace")[-3000:], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
