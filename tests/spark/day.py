"""A day in the life of a queue: Node's and toril's workers share its jobs, and each handler keeps a count of its own.

`python -m tests.spark.day 50000` lives through a long one and holds the tables against the counts.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.factory import Factory
from toril import (
    Backoff,
    FlowNode,
    FlowProducer,
    Job,
    JobOptions,
    NewJob,
    PermanentError,
    Queue,
    TransientError,
    Worker,
)
from toril.spark.pipeline import Pipeline, PipelineOptions

NODE_FOLDER = Path(__file__).parents[1] / "interop" / "node"
NODE_WORKER = """
import { Worker, UnrecoverableError } from 'bullmq';
const [host, port] = process.argv[1].split(':');
const say = (id, outcome) => console.log(JSON.stringify([id, outcome]));
const worker = new Worker(process.argv[2], async job => {
  const n = job.data.n ?? 0;
  if (n % 25 === 1) { say(job.id, 'failed'); throw new UnrecoverableError(`order ${n} is unknown`); }
  if (n % 10 === 0 && job.attemptsMade === 0) { say(job.id, 'retried'); throw new Error('the service is busy'); }
  say(job.id, 'completed');
  return n;
}, { connection: { host, port: Number(port) }, prefix: process.argv[3], concurrency: 20 });
await worker.waitUntilReady();
console.log('ready');
process.on('SIGTERM', () => worker.close());
"""


@dataclass
class Day:
    """One queue, two kinds of workers, and what their handlers say happened."""

    url: str
    prefix: str
    jobs: int
    queue: str = "day"
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    by_node: int = 0
    _listening: Any = None

    async def live(self) -> None:
        with Factory(self.url, self.queue, self.prefix) as factory:
            factory.add(20, prefix="stalled")
            taken = factory.take(20)
            factory.let_stall(taken)
            self.attempts.update(taken)
            self.outcomes["stalled"] += 20
        async with Queue(self.queue, redis=self.url, prefix=self.prefix) as queue:
            await self._add(queue)
            node = await self._start_node()
            async with Worker(self.queue, self._handle, redis=self.url, prefix=self.prefix, concurrency=20):
                await self._until_done(queue)
            await self._end_node(node)

    async def _add(self, queue: Queue[Any]) -> None:
        plain = JobOptions(attempts=3, backoff=Backoff.fixed(0.05))
        late = JobOptions(attempts=3, backoff=Backoff.fixed(0.05), delay=0.3)
        for start in range(0, self.jobs, 1000):
            numbers = range(start, min(start + 1000, self.jobs))
            await queue.add_bulk([NewJob("send", {"n": n}, late if n % 50 == 7 else plain) for n in numbers])
        async with FlowProducer(redis=self.url, prefix=self.prefix) as flows:
            for _ in range(5):
                children = [FlowNode("child", queue=self.queue, data={"n": 2}) for _ in range(3)]
                await flows.add(FlowNode("parent", queue=self.queue, data={"n": 3}, children=children))

    @property
    def expected(self) -> int:
        return self.jobs + 20 + 5 * 4

    async def _handle(self, job: Job[Any]) -> int:
        number = int(job.data.get("n", 0))
        if number % 25 == 1:
            self._note(job.id, "failed")
            raise PermanentError(f"order {number} is unknown")
        if number % 10 == 0 and job.attempts_made == 0:
            self._note(job.id, "retried")
            raise TransientError("the service is busy")
        self._note(job.id, "completed")
        return number

    def _note(self, job_id: str, outcome: str) -> None:
        self.attempts[job_id] += 1
        self.outcomes[outcome] += 1

    async def _start_node(self) -> asyncio.subprocess.Process:
        place = self.url.removeprefix("redis://")
        words = [
            shutil.which("node") or "node",
            "--input-type=module",
            "-e",
            NODE_WORKER,
            place,
            self.queue,
            self.prefix,
        ]
        pipe = asyncio.subprocess.PIPE
        node = await asyncio.create_subprocess_exec(*words, cwd=NODE_FOLDER, stdout=pipe)
        assert node.stdout is not None
        assert (await node.stdout.readline()).strip() == b"ready"
        self._listening = asyncio.create_task(self._listen(node))
        return node

    async def _until_done(self, queue: Queue[Any]) -> None:
        deadline = time.monotonic() + 300 + self.jobs / 100
        while time.monotonic() < deadline:
            counts = await queue.get_job_counts()
            if counts.completed + counts.failed >= self.expected:
                return
            await asyncio.sleep(0.1)
        raise TimeoutError("the day does not end")

    async def _end_node(self, node: asyncio.subprocess.Process) -> None:
        node.terminate()
        await self._listening
        await node.wait()

    async def _listen(self, node: asyncio.subprocess.Process) -> None:
        assert node.stdout is not None
        async for line in node.stdout:
            self.by_node += 1
            self._note(*json.loads(line))


def check(day: Day, pipeline: Pipeline) -> None:
    """Holds the tables against the handlers' count."""
    found = pipeline.query("select outcome, count(*) as n from silver.attempts group by 1").to_pylist()
    assert {row["outcome"]: row["n"] for row in found} == day.outcomes
    per_job = pipeline.query("select job_id, count(*) as n from silver.attempts group by 1").to_pylist()
    assert {row["job_id"]: row["n"] for row in per_job} == day.attempts
    with Factory(day.url, day.queue, day.prefix) as factory:
        sums = pipeline.query(
            "select count(*) as n, coalesce(sum(lost), 0)::bigint as lost from bronze.events"
        ).to_pylist()
        gaps = 1 if sums[0]["lost"] else 0
        assert sums[0]["n"] - gaps + sums[0]["lost"] == factory.entries_added
    gold = pipeline.query(
        "select sum(attempts)::bigint as n, sum(completed)::bigint as c from gold.queue_minute"
    ).to_pylist()
    assert gold == [{"n": day.outcomes.total(), "c": day.outcomes["completed"]}]


def main(jobs: str = "50000") -> None:
    from tests.servers import Server

    with Server.valkey() as server, tempfile.TemporaryDirectory() as folder:
        day = Day(server.url, "day", int(jobs))
        asyncio.run(day.live())
        print(f"{day.outcomes} of {day.expected} jobs, {day.by_node} attempts by Node", flush=True)
        pipeline = Pipeline(PipelineOptions(redis=server.url, prefix="day", lake=folder))
        pipeline.spark.sparkContext.setLogLevel("OFF")
        print(pipeline.run_once(), flush=True)
        check(day, pipeline)
        print("every attempt is in the tables, once", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
