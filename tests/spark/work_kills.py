"""Kills what processes jobs, and checks that no job is lost: `python -m tests.spark.work_kills [JOBS] [KILLS] [SEED]`.

A Node producer adds jobs. Two `SparkWorker`s (one per engine) on a standalone master with two workers, one `Worker`
and one Node worker share them, while drivers, executors and Python processes of Spark are killed (-9) at random and the
server is restarted once. Every handler records its runs: one that ran again must have been interrupted by a kill of its
engine, or by the restart.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.servers import Server
from tests.spark.places import ENVIRONMENT, standalone
from tests.spark.work_worker import QUEUE
from toril.protocol.keys import QueueKeys

ROOT = Path(__file__).parents[2]
NODE = ROOT / "tests" / "interop" / "node"
_CONNECTION = "const connection = { host: '127.0.0.1', port: %d, maxRetriesPerRequest: null };"
PRODUCER = """
const { Queue } = require('bullmq');
%s
(async () => {
  const queue = new Queue('%s', { connection, prefix: '%s' });
  const total = %d;
  for (let start = 0; start < total; start += 1000) {
    const jobs = [];
    for (let n = start; n < Math.min(total, start + 1000); n++) {
      jobs.push({ name: 'double', data: { n }, opts: { attempts: 2 } });
    }
    await queue.addBulk(jobs);
  }
  await queue.close();
})();
"""
NODE_WORKER = """
const { appendFileSync } = require('fs');
const { Worker } = require('bullmq');
%s
const patience = { maxStalledCount: 20, lockDuration: 8000, stalledInterval: 8000 };
const options = { connection, prefix: '%s', concurrency: 8, ...patience };
const pause = () => new Promise((done) => setTimeout(done, 50));
const worker = new Worker('%s', async (job) => {
  appendFileSync('%s/node-' + process.pid, `${job.data.n} ${Date.now() / 1000}\\n`);
  await pause();
  return job.data.n * 2;
}, options);
worker.on('error', () => {});
"""
Process = subprocess.Popen[bytes]
# Command lines of the processes of Spark that are killed.
EXECUTOR = ("CoarseGrainedExecutorBackend",)
PYTHON = ("pyspark.daemon", "python_streaming_source_runner")
# Whose handlers are interrupted by a kill; of the restart: all.
MEETS = {
    "loop": {"loop"},
    "rows": {"rows"},
    "executor": {"loop", "rows"},
    "python": {"loop", "rows"},
    "server": {"loop", "rows", "plain", "node"},
}


# What a killed process had started ends a moment later: executors after their driver, Python after its executor.
_SURVIVES = 10.0


@dataclass(frozen=True)
class Kill:
    """A kill, or the restart of the server, and the time in which it interrupts handlers."""

    name: str
    began: float
    ended: float

    def interrupts(self, first: Run, second: Run) -> bool:
        """Whether it explains that a handler ran a second time."""
        return first.engine in MEETS[self.name] and self.began <= second.at and first.at <= self.ended


@dataclass(frozen=True)
class Run:
    """A handler ran for a job."""

    at: float
    engine: str


@dataclass
class Crew:
    """The processes that share the queue, and whom to kill."""

    server: Server
    prefix: str
    master: str
    folder: Path
    processes: dict[str, Process] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)  # the restart included

    @property
    def runs(self) -> Path:
        """The folder in which handlers record their runs."""
        return self.folder / "runs"

    def start(self, name: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        if name == "node":
            port = int(self.server.url.rsplit(":", 1)[1])
            program = NODE_WORKER % (_CONNECTION % port, self.prefix, QUEUE, self.runs)
            command, where = ["node", "-e", program], NODE
        else:
            words = [name, self.master, self.server.url, self.prefix, str(self.runs)]
            command, where = [sys.executable, "-m", "tests.spark.work_worker", *words], ROOT
        self.processes[name] = subprocess.Popen(
            command, cwd=where, stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT
        )
        log.close()

    def kill(self, chance: random.Random) -> str:
        """Kills something at random; a driver is started again."""
        name = chance.choice(["loop", "rows", "executor", "python"])
        began = time.time()
        if name in self.processes:
            os.killpg(self.processes[name].pid, signal.SIGKILL)
            self.processes[name].wait()
            self.start(name)
        else:
            marks = EXECUTOR if name == "executor" else PYTHON
            victim = chance.choice(self.await_processes(marks))
            began = time.time()
            os.kill(victim, signal.SIGKILL)
        self.kills.append(Kill(name, began, began + _SURVIVES))
        return name

    def await_processes(self, marks: tuple[str, ...], seconds: float = 120) -> list[int]:
        """Processes whose command line has one of the marks: after a kill, Spark needs a while to start others."""
        deadline = time.monotonic() + seconds
        while not (found := [pid for pid in self._of_spark() if has_any(command_of(pid), marks)]):
            assert time.monotonic() < deadline, f"no process of Spark is like {marks}"
            time.sleep(0.1)
        return found

    def _of_spark(self) -> list[int]:
        """What descends from the drivers and from the workers of the standalone master."""
        roots = [self.processes[name].pid for name in ("loop", "rows")]
        roots += [pid for pid in descendants(os.getpid()) if "deploy.worker.Worker" in command_of(pid)]
        return [pid for root in roots for pid in descendants(root)]

    def restart_server(self, seconds: float) -> None:
        began = time.time()
        self.server.stop()
        time.sleep(seconds)
        self.server.start()
        self.kills.append(Kill("server", began, time.time()))

    def end(self) -> None:
        for one in self.processes.values():
            with suppress(ProcessLookupError):  # it has stopped
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()

    def stop(self) -> None:
        """Asks all to stop, and waits."""
        for one in self.processes.values():
            one.send_signal(signal.SIGTERM)
        for one in self.processes.values():
            one.wait(120)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def has_any(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)


def descendants(of: int) -> list[int]:
    """The processes that descend from one, in any generation."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [of]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


@contextmanager
def crew(folder: Path, prefix: str) -> Iterator[Crew]:
    """A server that writes every change to its file, a standalone master, and nobody at work yet."""
    with ExitStack() as stack:
        server = stack.enter_context(Server.valkey(appendonly="yes", appendfsync="always"))
        master = stack.enter_context(standalone(folder))
        made = Crew(server, prefix, master, folder)
        made.runs.mkdir()
        stack.callback(made.end)
        yield made


def run(
    folder: Path, jobs: int, kills: int, *, seed: int, seconds: float, say: Callable[[str], Any]
) -> Repeated:
    """The whole story; raises when a promise is broken, and returns the repeated runs that no kill explains."""
    chance = random.Random(seed)
    with crew(folder, "kills") as made:
        keys = QueueKeys(QUEUE, "kills")
        port = int(made.server.url.rsplit(":", 1)[1])
        program = PRODUCER % (_CONNECTION % port, QUEUE, "kills", jobs)
        subprocess.run(["node", "-e", program], cwd=NODE, check=True, timeout=300)
        with made.server.client() as client:
            client.hset(keys.meta, "opts.maxLenEvents", 20 * jobs + 100_000)
        for name in ("loop", "rows"):
            made.start(name)
            await_first(made.server, keys, chance, 180)
        for name in ("plain", "node"):
            made.start(name)
        restart_at = kills // 2
        for number, share in enumerate(sorted(chance.uniform(0.05, 0.85) for _ in range(kills))):
            await_completed(made.server, keys, round(share * jobs), seconds)
            say(f"kill {number + 1}: {made.kill(chance)}")
            if number == restart_at:
                time.sleep(chance.uniform(0.0, 2.0))
                made.restart_server(chance.uniform(0.5, 2.0))
                say("the server was restarted")
        await_end(made.server, keys, jobs, seconds, say)
        made.stop()
        return check(made.server, keys, jobs, made, say)


def await_first(server: Server, keys: QueueKeys, chance: random.Random, seconds: float) -> None:
    """Waits until jobs are completed: Spark needs longer to start than others need for all jobs."""
    deadline = time.monotonic() + seconds
    with server.client() as client:
        before = client.zcard(keys.completed)
        while client.zcard(keys.completed) <= before + chance.randint(0, 10):
            assert time.monotonic() < deadline, "a Spark worker did not begin"
            time.sleep(0.1)


def await_completed(server: Server, keys: QueueKeys, count: int, seconds: float) -> None:
    """Waits until so many jobs are completed."""
    deadline = time.monotonic() + seconds
    with server.client() as client:
        while client.zcard(keys.completed) < count:
            assert time.monotonic() < deadline, f"fewer than {count} jobs were completed"
            time.sleep(0.05)


def await_end(server: Server, keys: QueueKeys, jobs: int, seconds: float, say: Callable[[str], Any]) -> None:
    deadline = time.monotonic() + seconds
    with server.client() as client:
        while (done := client.zcard(keys.completed) + client.zcard(keys.failed)) < jobs:
            left = {name: client.llen(getattr(keys, name)) for name in ("wait", "active")}
            assert time.monotonic() < deadline, f"{done} of {jobs} ended; {left}"
            say(f"{done} of {jobs} ended, {left}")
            time.sleep(2.0)


Repeated = list[tuple[int, Run, Run]]


def check(server: Server, keys: QueueKeys, jobs: int, made: Crew, say: Callable[[str], Any]) -> Repeated:
    """Raises when a promise is broken; returns the repeated runs that no kill explains."""
    with server.client() as client:
        assert client.llen(keys.active) == 0, "jobs are left active"
        assert client.zcard(keys.failed) == 0, client.hget(
            keys.job(client.zrange(keys.failed, 0, 0)[0].decode()), "failedReason"
        )
        ids = [one.decode() for one in client.zrange(keys.completed, 0, -1)]
        assert len(ids) == jobs, f"{jobs - len(ids)} jobs are lost"
        for one in ids:
            data, value = client.hmget(keys.job(one), "data", "returnvalue")
            assert json.loads(value) == 2 * json.loads(data)["n"], one
        finals: Counter[str] = Counter()
        for _, fields in client.xrange(keys.events):
            if fields[b"event"] == b"completed":
                finals[fields[b"jobId"].decode()] += 1
        assert set(finals.values()) == {1} and len(finals) == jobs, "a job was completed twice"
    runs = runs_of(made.runs)
    assert len(runs) == jobs, f"{jobs - len(runs)} jobs have a result, and no handler ran"
    say(
        f"lost 0, one final transition for each of {jobs} jobs, {dict(Counter(one.name for one in made.kills))}"
    )
    say(f"handlers ran: {dict(Counter(run.engine for one in runs.values() for run in one))}")
    repeated = sum(len(one) - 1 for one in runs.values())
    strange = unexplained(runs, made.kills)
    say(f"{repeated} runs repeated, {len(strange)} of them without a kill of their engine")
    return strange


def runs_of(folder: Path) -> dict[int, list[Run]]:
    """By job, in order."""
    found: dict[int, list[Run]] = {}
    for path in folder.iterdir():
        engine = path.name.partition("-")[0]
        for line in path.read_text().splitlines():
            number, at = line.split()
            found.setdefault(int(number), []).append(Run(float(at), engine))
    return {number: sorted(runs, key=lambda one: one.at) for number, runs in found.items()}


def unexplained(runs: dict[int, list[Run]], kills: list[Kill]) -> Repeated:
    """Runs that were repeated although nothing that could interrupt them was killed in between."""
    return [
        (number, first, second)
        for number, of_job in runs.items()
        for first, second in pairwise(of_job)
        if not any(one.interrupts(first, second) for one in kills)
    ]


def main(jobs: int = 100_000, kills: int = 10, seed: int | None = None) -> None:
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        strange = run(
            Path(folder), jobs, kills, seed=seed, seconds=1200, say=lambda text: print(text, flush=True)
        )
    if strange:
        raise SystemExit(f"no kill explains {strange[:5]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
