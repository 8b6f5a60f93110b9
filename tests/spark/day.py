"""A day in the life of a queue: Node's and toril's workers share its jobs, and each handler keeps a record of its own.

`python -m tests.spark.day 50000` lives through a long one and holds the tables against the records.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.spark.factory import Factory
from tests.spark.records import Records, differences, rows_of, workers_missing
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
const clock = () => performance.timeOrigin / 1000 + performance.now() / 1000;
const worker = new Worker(process.argv[2], async job => {
  const began = clock(), n = job.data.n ?? 0;
  const say = (outcome, error = null) =>
    console.log(JSON.stringify([job.id, outcome, error, 'node-1', began, clock()]));
  if (n % 25 === 1) {
    const error = `order ${n} is unknown`;
    say('failed', error);
    throw new UnrecoverableError(error);
  }
  if (n % 10 === 0 && job.attemptsMade < 3) {
    const error = `service ${job.attemptsMade}: connect ${n} refused`;
    say('retried', error);
    throw new Error(error);
  }
  say('completed');
  return n;
}, { connection: { host, port: Number(port) }, prefix: process.argv[3], concurrency: 20, name: 'node-1' });
await worker.waitUntilReady();
console.log('ready');
process.on('SIGTERM', () => worker.close());
"""
STALLED, SWEPT = 20, 5  # jobs that stall once, and jobs that stall too often
AGAIN = 12  # ids that are used three times


@dataclass
class Day:
    """One queue, two kinds of workers, and what their handlers say happened."""

    url: str
    prefix: str
    jobs: int
    queue: str = "day"
    records: Records = field(default_factory=Records)
    swept: list[str] = field(default_factory=list)  # stalled too often: nobody runs them any more
    by_node: int = 0
    _listening: Any = None

    @property
    def outcomes(self) -> Counter[str]:
        return self.records.outcomes

    async def live(self) -> None:
        with Factory(self.url, self.queue, self.prefix) as factory:
            self._let_stall(factory, "stalled", STALLED, max_stalled=5)
            self.swept = self._let_stall(factory, "swept", SWEPT, max_stalled=0)
        async with Queue(self.queue, redis=self.url, prefix=self.prefix) as queue:
            await self._add(queue)
            node = await self._start_node()
            try:
                async with self._worker():
                    await self._use_ids_again(queue)
                    await self._until_done(queue)
            finally:
                await self._end_node(node)

    def _worker(self) -> Worker:
        words: dict[str, Any] = {"redis": self.url, "prefix": self.prefix, "worker_id": "toril-1"}
        return Worker(self.queue, self._handle, concurrency=20, **words)

    def _let_stall(self, factory: Factory, prefix: str, count: int, max_stalled: int) -> list[str]:
        """Jobs that a worker took and held when it died."""
        factory.add(count, prefix=prefix, attempts=5)
        began = time.time()
        taken = factory.take(count)
        factory.let_stall(taken, max_stalled=max_stalled)
        for job in taken:
            self.records.note(job, "stalled", None, "factory-1", began)
        return taken

    async def _add(self, queue: Queue[Any]) -> None:
        plain = JobOptions(attempts=5, backoff=Backoff.fixed(0.05))
        late = JobOptions(attempts=5, backoff=Backoff.fixed(0.05), delay=0.3)
        for start in range(0, self.jobs, 1000):
            numbers = range(start, min(start + 1000, self.jobs))
            await queue.add_bulk([NewJob("send", {"n": n}, late if n % 50 == 7 else plain) for n in numbers])
        async with FlowProducer(redis=self.url, prefix=self.prefix) as flows:
            for _ in range(5):
                children = [FlowNode("child", queue=self.queue, data={"n": 2}) for _ in range(3)]
                await flows.add(FlowNode("parent", queue=self.queue, data={"n": 3}, children=children))

    async def _use_ids_again(self, queue: Queue[Any]) -> None:
        """The same ids three times. The first two times the jobs vanish when they complete; what they failed with
        before would vanish with them."""
        ids = [f"again-{n}" for n in range(AGAIN)]
        for turn in range(3):
            options = JobOptions(attempts=5, backoff=Backoff.fixed(0.01), remove_on_complete=turn < 2)
            data = [{"n": 10 * (n % 2) if turn == 2 else 3} for n in range(AGAIN)]
            await queue.add_bulk(
                [
                    NewJob("again", one, replace(options, job_id=job))
                    for job, one in zip(ids, data, strict=True)
                ]
            )
            while turn < 2 and any([await queue.get_job(job) for job in ids]):
                await asyncio.sleep(0.02)

    @property
    def expected(self) -> int:
        return self.jobs + STALLED + SWEPT + 5 * 4 + AGAIN

    async def _handle(self, job: Job[Any]) -> int:
        began, number = time.time(), int(job.data.get("n", 0))

        def say(outcome: str, error: str | None = None) -> None:
            self.records.note(job.id, outcome, error, "toril-1", began, time.time())

        if number % 25 == 1:
            say("failed", error := f"order {number} is unknown")
            raise PermanentError(error)
        if number % 10 == 0 and job.attempts_made < 3:
            say("retried", error := f"service {job.attempts_made}: connect {number} refused")
            raise TransientError(error)
        say("completed")
        return number

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
            self.records.note(*json.loads(line))


def check(day: Day, pipeline: Pipeline) -> None:
    """Holds the tables against the handlers' records."""
    rows = rows_of(pipeline, day.queue)
    assert differences(day.records, rows) == []
    assert set(workers_missing(day.records, rows)) == set(day.swept), (
        "another worker found them, and ran none"
    )
    failed = pipeline.query("select job_id, error from silver.jobs where state = 'failed'").to_pylist()
    reasons = {row["job_id"]: row["error"] for row in failed}
    assert {reasons[job] for job in day.swept} == {"job stalled more than allowable limit"}
    patterns = pipeline.query("select pattern, sum(count)::int as n from gold.errors group by 1").to_pylist()
    assert {row["pattern"]: row["n"] for row in patterns} == {
        "order <n> is unknown": day.outcomes["failed"],
        "service <n>: connect <n> refused": day.outcomes["retried"],
    }
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
