"""Ten kills of a pipeline and five of a write, at random: `python -m tests.spark.long_kills`. Takes some minutes."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.test_kills import (
    check_tables,
    executors_of,
    finish,
    kill_alone,
    kill_family,
    last_commit,
    start,
)
from toril.contract.keys import QueueKeys

PREFIX, ROWS = "kills", 200_000


def kill_pipeline(url: str, lake: Path, kills: int, chance: random.Random) -> None:
    with Factory(url, "killed", PREFIX) as queue:
        queue.add(2_000)
        for number in range(kills):
            queue.add(300)
            queue.work(fail=0.05, retry=0.1)
            cluster = number % 3 == 2
            master = "local-cluster[2,1,512]" if cluster else "local[2]"
            process = start(master, "pipeline", url, PREFIX, lake)
            time.sleep(chance.uniform(5, 45))
            if cluster and process.poll() is None and executors_of(process):
                executors_of(process)[0].kill()
                time.sleep(chance.uniform(0, 10))
            print(f"kill {number + 1} ({master}): {_kill(process, chance)}", flush=True)
        newest = last_commit(lake)
        if newest is not None:
            newest.unlink()
        for _ in range(2):
            finish(start("local[2]", "pipeline", url, PREFIX, lake))
        check_tables(lake, queue)
        print(
            f"{queue.entries_added} events, {queue.outcomes.total()} attempts: all there, none twice",
            flush=True,
        )


def _kill(process: subprocess.Popen[bytes], chance: random.Random) -> str:
    """The driver alone, or its whole family; the next run starts at once."""
    if process.poll() is not None:
        return "it was done"
    if chance.random() < 0.5:
        kill_alone(process)
        return "the driver alone"
    kill_family(process)
    return "driver, JVM, executors and workers"


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
