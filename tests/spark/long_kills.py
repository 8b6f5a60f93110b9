"""Ten kills of a pipeline and five of a write, at random: `python -m tests.spark.long_kills`. Takes some minutes."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.test_killed_drivers import (
    check_tables,
    executors_of,
    finish,
    kill_alone,
    kill_family,
    start,
)
from toril.protocol.keys import QueueKeys

PREFIX, ROWS = "kills", 200_000


def kill_pipeline(url: str, lake: Path, kills: int, chance: random.Random) -> None:
    with Factory(url, "killed", PREFIX) as queue:
        queue.add(2_000)
        done = 0
        while done < kills:  # a run that was faster than its murderer does not count
            queue.add(300)
            queue.work(fail=0.05, retry=0.1)
            killed = _start_and_kill(url, lake, done % 3 == 2, chance)
            done += killed is not None
            print(f"kill {done}: {killed}" if killed else "a run came to its end", flush=True)
        for _ in range(2):
            finish(start("local[2]", "run", url, PREFIX, lake))
        check_tables(lake, queue)
        print(
            f"{queue.entries_added} events, {queue.outcomes.total()} attempts: all there, none twice",
            flush=True,
        )


def _start_and_kill(url: str, lake: Path, cluster: bool, chance: random.Random) -> str | None:
    """The driver alone, or its whole family; an executor before, where there are any. The next run starts at once."""
    master = "local-cluster[2,1,512]" if cluster else "local[2]"
    action = chance.choice(("run", "up"))
    process = start(master, action, url, PREFIX, lake)
    deadline = time.monotonic() + chance.uniform(5, 30 if cluster else 20)
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    words = [f"{action} on {master}"]
    if process.poll() is None and (executors := executors_of(process)):
        executors[0].kill()
        words.append("an executor")
        time.sleep(chance.uniform(0, 10))
    if process.poll() is not None:
        finish(process)
        return None
    if chance.random() < 0.5:
        kill_alone(process)
        return ", ".join([*words, "the driver alone"])
    kill_family(process)
    return ", ".join([*words, "driver, JVM and workers"])


def kill_write(server: Server, lake: Path, kills: int, chance: random.Random) -> None:
    keys = QueueKeys("many", PREFIX)
    with server.client() as client:
        for number in range(kills):
            process = start("local[2]", str(ROWS), server.url, PREFIX, lake)
            goal = ROWS * (number + chance.random()) / (kills + 1)
            while process.poll() is None and client.llen(keys.wait) < goal:
                time.sleep(0.01)
            if process.poll() is None:
                kill_family(process)
            print(f"kill {number + 1} at {client.llen(keys.wait)} jobs", flush=True)
        finish(start("local[2]", str(ROWS), server.url, PREFIX, lake))
        found = client.lrange(keys.wait, 0, -1)
        assert len(found) == len(set(found)) == ROWS, len(found)
        print(f"exactly {ROWS} jobs", flush=True)


def main(what: str = "both", seed: str = "1") -> None:
    with Server.valkey() as server, tempfile.TemporaryDirectory() as folder:
        if what in ("write", "both"):
            kill_write(server, Path(folder), 5, random.Random(int(seed)))
        if what in ("pipeline", "both"):
            kill_pipeline(server.url, Path(folder) / "lake", 10, random.Random(int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
