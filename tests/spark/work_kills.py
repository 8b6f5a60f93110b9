"""Kills what processes jobs, and checks that no job is lost: `python -m tests.spark.work_kills [JOBS] [KILLS]`.

A Node producer adds jobs. Two `SparkWorker`s (one per engine) on a standalone master with two workers, one `Worker`
and one Node worker share them, while drivers, executors, Python workers and plain workers are killed (-9) at random and
the server is restarted once.
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
const { Worker } = require('bullmq');
%s
const patience = { maxStalledCount: 20, lockDuration: 8000, stalledInterval: 8000 };
const options = { connection, prefix: '%s', concurrency: 20, ...patience };
const pause = () => new Promise((done) => setTimeout(done, 50));
const worker = new Worker('%s', async (job) => { await pause(); return job.data.n * 2; }, options);
worker.on('error', () => {});
"""
Process = subprocess.Popen[bytes]


@dataclass
class Crew:
    """The processes that share the queue, and whom to kill."""

    server: Server
    prefix: str
    master: str
    folder: Path
    processes: dict[str, Process] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self, name: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        if name == "node":
            port = int(self.server.url.rsplit(":", 1)[1])
            program = NODE_WORKER % (_CONNECTION % port, self.prefix, QUEUE)
            command, where = ["node", "-e", program], NODE
        else:
            words = [name, self.master, self.server.url, self.prefix]
            command, where = [sys.executable, "-m", "tests.spark.work_worker", *words], ROOT
        self.processes[name] = subprocess.Popen(
            command, cwd=where, stdout=log, stderr=log, start_new_session=True, env=ENVIRONMENT
        )
        log.close()

    def kill(self, chance: random.Random) -> str:
        """Kills something at random; what was killed as a whole is started again."""
        name = chance.choice(["loop", "rows", "plain", "node", "executor", "python"])
        if name in self.processes:
            os.killpg(self.processes[name].pid, signal.SIGKILL)
            self.processes[name].wait()
            self.start(name)
        else:
            mark = "CoarseGrainedExecutorBackend" if name == "executor" else "pyspark.daemon"
            found = [pid for pid in descendants(os.getpid()) if mark in command_of(pid)]
            if not found:
                name = f"no {name}"
            else:
                os.kill(chance.choice(found), signal.SIGKILL)
        self.kills[name] += 1
        return name

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
        stack.callback(made.end)
        yield made


def run(folder: Path, jobs: int, kills: int, *, seed: int, seconds: float, say: Callable[[str], Any]) -> None:
    """The whole story; raises when a promise is broken."""
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
        for number in range(kills):
            time.sleep(chance.uniform(1.0, 6.0))
            say(f"kill {number + 1}: {made.kill(chance)}")
            if number == restart_at:
                made.server.stop()
                time.sleep(chance.uniform(0.5, 2.0))
                made.server.start()
                say("the server was restarted")
        await_end(made.server, keys, jobs, seconds, say)
        made.stop()
        check(made.server, keys, jobs, made, say)


def await_first(server: Server, keys: QueueKeys, chance: random.Random, seconds: float) -> None:
    """Waits until jobs are completed: Spark needs longer to start than others need for all jobs."""
    deadline = time.monotonic() + seconds
    with server.client() as client:
        before = client.zcard(keys.completed)
        while client.zcard(keys.completed) <= before + chance.randint(0, 10):
            assert time.monotonic() < deadline, "a Spark worker did not begin"
            time.sleep(0.1)


def await_end(server: Server, keys: QueueKeys, jobs: int, seconds: float, say: Callable[[str], Any]) -> None:
    deadline = time.monotonic() + seconds
    with server.client() as client:
        while (done := client.zcard(keys.completed) + client.zcard(keys.failed)) < jobs:
            left = {name: client.llen(getattr(keys, name)) for name in ("wait", "active")}
            assert time.monotonic() < deadline, f"{done} of {jobs} ended; {left}"
            say(f"{done} of {jobs} ended, {left}")
            time.sleep(2.0)


def check(server: Server, keys: QueueKeys, jobs: int, made: Crew, say: Callable[[str], Any]) -> None:
    with server.client() as client:
        assert client.llen(keys.active) == 0, "jobs are left active"
        assert client.zcard(keys.failed) == 0, client.hget(
            keys.job(client.zrange(keys.failed, 0, 0)[0].decode()), "failedReason"
        )
        ids = [one.decode() for one in client.zrange(keys.completed, 0, -1)]
        assert len(ids) == jobs, f"{jobs - len(ids)} jobs are lost"
        takers: Counter[str] = Counter()
        started = 0
        for one in ids:
            data, value, taker, count = client.hmget(keys.job(one), "data", "returnvalue", "pb", "ats")
            assert json.loads(value) == 2 * json.loads(data)["n"], one
            takers[(taker or b"node").decode().partition(".")[0].rpartition("-")[0]] += 1
            started += int(count)
        finals: Counter[str] = Counter()
        for _, fields in client.xrange(keys.events):
            if fields[b"event"] == b"completed":
                finals[fields[b"jobId"].decode()] += 1
        assert set(finals.values()) == {1} and len(finals) == jobs, "a job was completed twice"
    say(
        f"lost 0, one final transition for each of {jobs} jobs; {started - jobs} runs repeated; {dict(made.kills)}"
    )
    say(f"who completed them: {dict(takers)}")


def main(jobs: int = 100_000, kills: int = 10) -> None:
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), jobs, kills, seed=seed, seconds=1200, say=lambda text: print(text, flush=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
