"""A day in the life of a queue: Node's and toril's workers share its jobs, and each handler keeps a record of its own.

`python -m tests.spark.day --jobs 50000 --seed 3` lives through a long one and holds the tables against the records,
attempt by attempt; then Redis is emptied, and a replay must give the same tables, row for row.

What handlers do is decided by the seed (`day_plan`): errors of several classes, jobs that run out of attempts and are
retried by hand, ids that are used three times, jobs that are removed as they complete, and a Node worker that is
killed while its handlers run. The pipeline runs in between, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.day_plan import ATTEMPTS, Planner, patterns_of, step_of
from tests.spark.factory import Factory
from tests.spark.records import Records, differences, rows_of, whole_tables, workers_missing
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
from toril.lake import TABLES
from toril.spark.pipeline import Pipeline, PipelineOptions

NODE_FOLDER = Path(__file__).parents[1] / "interop" / "node"
NODE_WORKER = """
import { Worker, UnrecoverableError } from 'bullmq';
const [place, queue, prefix, name] = process.argv.slice(1);
const [host, port] = place.split(':');
const doomed = name === 'node-doomed';
class ServiceBusy extends Error { constructor(text) { super(text); this.name = 'ServiceBusy'; } }
const kinds = { transient: Error, named: ServiceBusy, permanent: UnrecoverableError };
const clock = () => performance.timeOrigin / 1000 + performance.now() / 1000;
const worker = new Worker(queue, async job => {
  const began = clock();
  const say = (outcome, error, ended) =>
    console.log(JSON.stringify([job.id, outcome, error, name, began, ended]));
  if (doomed && job.data.hang) {
    say('stalled', null, null);
    await new Promise(() => {});
  }
  const step = (job.data.plan ?? [])[job.attemptsMade];
  if (step) {
    say(step[1], step[2], clock());
    throw new kinds[step[0]](step[2]);
  }
  say('completed', null, clock());
  return 1;
}, {
  connection: { host, port: Number(port) }, prefix, name, concurrency: doomed ? 4 : 10,
  lockDuration: doomed ? 1500 : 30000, stalledInterval: 1000, maxStalledCount: 5,
});
await worker.waitUntilReady();
console.log('ready');
process.on('SIGTERM', () => worker.close());
"""
STALLED, SWEPT = 20, 5  # jobs that stall once, and jobs that stall too often
HANGING = 4  # jobs that the worker holds that is killed: as many as it runs at once
AGAIN = 12  # ids that are used three times
MADE = [name for name in TABLES if name.startswith(("silver/", "gold/"))]


class ServiceBusy(TransientError):
    """An error of the handlers' own."""


KINDS: dict[str, type[Exception]] = {
    "transient": TransientError,
    "named": ServiceBusy,
    "permanent": PermanentError,
}
Between = Callable[[], Awaitable[object]]  # brings the tables up to date while the day goes on


@dataclass
class Day:
    """One queue, two kinds of workers, and what their handlers say happened."""

    url: str
    prefix: str
    jobs: int
    seed: int = 1
    queue: str = "day"
    records: Records = field(default_factory=Records)
    swept: list[str] = field(default_factory=list)  # stalled too often: nobody runs them any more
    removed: set[str] = field(default_factory=set)  # as they completed: their hashes may never be read
    unsure: set[tuple[str, int]] = field(
        default_factory=set
    )  # job and place of attempts in lives nobody read

    def __post_init__(self) -> None:
        self.planner = Planner(self.seed)
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._hanging = asyncio.Semaphore(0)
        self._again: dict[str, list[int]] = {}  # attempts in each use of an id

    @property
    def outcomes(self) -> Counter[str]:
        return self.records.outcomes

    @property
    def by_node(self) -> int:
        return sum(one.worker.startswith("node") for one in self.records.all)

    # --- how it goes ---------------------------------------------------------------------------------------------

    async def live(self, between: Between) -> None:
        with Factory(self.url, self.queue, self.prefix) as factory:
            self._let_stall(factory, "stalled", STALLED, max_stalled=5)
            self.swept = self._let_stall(factory, "swept", SWEPT, max_stalled=0)
        async with Queue(self.queue, redis=self.url, prefix=self.prefix) as queue:
            await self._add(queue)
            await self._kill_a_worker()
            nodes = [await self._start_node(f"node-{n}") for n in (1, 2)]
            try:
                async with self._worker("toril-1"), self._worker("toril-2"):
                    await self._use_ids_again(queue, between)
                    await self._until_done(queue)
                    await self._retry_failed(queue, between)
                    await self._until_done(queue)
            finally:
                for node in nodes:
                    await self._end_node(node)
        self._note_unsure()

    def _worker(self, name: str) -> Worker:
        async def handle(job: Job[Any]) -> int:
            return self._handle(job, name)

        words: dict[str, Any] = {"redis": self.url, "prefix": self.prefix, "worker_id": name}
        return Worker(
            self.queue, handle, concurrency=10, max_stalled_count=5, events_max_len=1_000_000, **words
        )

    def _handle(self, job: Job[Any], worker: str) -> int:
        began, step = time.time(), step_of(job.data.get("plan"), job.attempts_made)
        if step is None:
            self.records.note(job.id, "completed", None, worker, began, time.time())
            return 1
        kind, outcome, error = step
        raised = KINDS[kind](error)
        if kind != "permanent":
            raised.add_note(f"attempt {job.attempts_made}\nof {job.id}")
        # What an error without a message is called by: its class.
        self.records.note(job.id, outcome, error or type(raised).__name__, worker, began, time.time())
        raise raised from (OSError("cause") if kind == "named" else None)

    def _let_stall(self, factory: Factory, prefix: str, count: int, max_stalled: int) -> list[str]:
        """Jobs that a worker took and held when it died."""
        factory.add(count, prefix=prefix, attempts=5)
        taken = factory.take(count)
        began = time.time()
        factory.let_stall(taken, max_stalled=max_stalled)
        for job in taken:
            self.records.note(job, "stalled", None, "factory-1", began)
        return taken

    async def _add(self, queue: Queue[Any]) -> None:
        jobs = self.planner.jobs(self.jobs)
        for start in range(0, self.jobs, 1000):
            some = jobs[start : start + 1000]
            added = await queue.add_bulk(some)
            pairs = zip(added, some, strict=True)
            self.removed |= {job.id for job, new in pairs if new.options and new.options.remove_on_complete}
        async with FlowProducer(redis=self.url, prefix=self.prefix) as flows:
            for _ in range(5):
                children = [FlowNode("child", queue=self.queue, data={}) for _ in range(3)]
                await flows.add(FlowNode("parent", queue=self.queue, data={}, children=children))

    async def _kill_a_worker(self) -> None:
        """When all its handlers hang, nothing that it said is still on its way to Redis."""
        node = await self._start_node("node-doomed")
        for _ in range(HANGING):
            await asyncio.wait_for(self._hanging.acquire(), 60)
        node.kill()
        await self._listening[str(node.pid)]
        await node.wait()

    async def _use_ids_again(self, queue: Queue[Any], between: Between) -> None:
        """The same ids three times: read and removed by hand, removed as they complete, and kept."""
        ids = [f"again-{n}" for n in range(AGAIN)]
        self._again = {job: [] for job in ids}
        for turn in range(3):
            await self._use(queue, ids, remove=turn == 1)
            while turn < 2 and not await self._are_done(queue, ids):
                await asyncio.sleep(0.02)
            if turn == 0:
                await between()
                for job in ids:
                    await (await queue.get_job(job)).remove()  # type: ignore[union-attr]

    async def _use(self, queue: Queue[Any], ids: list[str], *, remove: bool) -> None:
        words: dict[str, Any] = {"attempts": ATTEMPTS, "backoff": Backoff.fixed(0.01)}
        jobs = []
        for job in ids:
            plan = self.planner.plan(completes=True)
            self._again[job].append(len(plan) + 1)
            options = JobOptions(job_id=job, remove_on_complete=remove, **words)
            jobs.append(NewJob("again", {"plan": plan}, options))
        await queue.add_bulk(jobs)

    async def _are_done(self, queue: Queue[Any], ids: list[str]) -> bool:
        found = [await queue.get_job(job) for job in ids]
        return all(job is None or job.finished_on is not None for job in found)

    async def _retry_failed(self, queue: Queue[Any], between: Between) -> None:
        """Half of those that failed are run again by hand."""
        if self.planner.chance.random() < 0.5:
            await between()
        last = {one.job_id: one.outcome for one in self.records.all}
        for job in [job for job, outcome in last.items() if outcome == "failed"][::2]:
            await (await queue.get_job(job)).retry()  # type: ignore[union-attr]

    def _note_unsure(self) -> None:
        """Of a job that vanished as it completed nobody may have read why attempts failed before."""
        attempts = self.records.attempts
        last = {one.job_id: one.outcome for one in sorted(self.records.all, key=lambda one: one.began)}
        self.removed = {job for job in self.removed if last[job] == "completed"}
        self.unsure = {(job, at) for job in self.removed for at in range(attempts[job])}
        for job, (first, second, _) in self._again.items():
            self.unsure |= {(job, at) for at in range(first, first + second)}

    async def _until_done(self, queue: Queue[Any]) -> None:
        deadline = time.monotonic() + 300 + self.jobs / 100
        while time.monotonic() < deadline:
            counts = await queue.get_job_counts()
            if not sum(
                (counts.waiting, counts.active, counts.delayed, counts.prioritized, counts.waiting_children)
            ):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError("the day does not end")

    # --- Node ----------------------------------------------------------------------------------------------------

    async def _start_node(self, name: str) -> asyncio.subprocess.Process:
        place = self.url.removeprefix("redis://")
        program = [shutil.which("node") or "node", "--input-type=module", "-e", NODE_WORKER]
        node = await asyncio.create_subprocess_exec(
            *program, place, self.queue, self.prefix, name, cwd=NODE_FOLDER, stdout=asyncio.subprocess.PIPE
        )
        assert node.stdout is not None
        assert (await node.stdout.readline()).strip() == b"ready"
        self._listening[str(node.pid)] = asyncio.create_task(self._listen(node.stdout))
        return node

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            job, outcome, *rest = json.loads(line)
            self.records.note(job, outcome, *rest)
            if outcome == "stalled":
                self._hanging.release()

    async def _end_node(self, node: asyncio.subprocess.Process) -> None:
        node.terminate()
        await self._listening[str(node.pid)]
        await node.wait()


def check(day: Day, pipeline: Pipeline) -> None:
    """Holds the tables against the handlers' records."""
    rows = rows_of(pipeline, day.queue)
    found = differences(day.records, rows, unsure=day.unsure)
    assert not found, "\n".join(found[:20])
    missing = set(workers_missing(day.records, rows)) - day.removed
    assert missing == set(day.swept), "another worker found them, and ran none"
    failed = pipeline.query("select job_id, error from silver.jobs where state = 'failed'").to_pylist()
    reasons = {row["job_id"]: row["error"] for row in failed}
    assert {reasons[job] for job in day.swept} == {"job stalled more than allowable limit"}
    _check_figures(day, pipeline, rows)


def _check_figures(day: Day, pipeline: Pipeline, rows: dict[str, list[dict[str, Any]]]) -> None:
    unknown = {(job, at) for job, at in day.unsure if rows[job][at]["error"] is None}
    raised = [
        one.error
        for job, attempts in day.records.by_job().items()
        for at, one in enumerate(attempts)
        if (job, at) not in unknown
    ]
    patterns = pipeline.query("select pattern, sum(count)::int as n from gold.errors group by 1").to_pylist()
    assert {row["pattern"]: row["n"] for row in patterns} == patterns_of(raised)
    with Factory(day.url, day.queue, day.prefix) as factory:
        sums = pipeline.query("select count(*) as n, count(lost) as gaps from bronze.events").to_pylist()
        assert sums == [{"n": factory.entries_added, "gaps": 0}]
    gold = pipeline.query(
        "select sum(attempts)::bigint as n, sum(completed)::bigint as c from gold.queue_minute"
    ).to_pylist()
    assert gold == [{"n": day.outcomes.total(), "c": day.outcomes["completed"]}]


def check_replay(day: Day, pipeline: Pipeline) -> None:
    """Without a key in Redis, silver and gold become what they were, row for row."""
    before = whole_tables(pipeline, MADE)
    with Factory(day.url, day.queue, day.prefix) as factory:
        factory.forget()
    pipeline.replay()
    assert whole_tables(pipeline, MADE) == before


def main() -> None:
    from tests.servers import Server

    asked = argparse.ArgumentParser(prog="python -m tests.spark.day", description=__doc__)
    asked.add_argument("--jobs", type=int, default=20_000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--engine", default="spark", help="driver or spark")
    given = asked.parse_args()
    logging.getLogger("toril").setLevel(logging.CRITICAL)  # thousands of errors are meant to be
    with Server.valkey() as server, tempfile.TemporaryDirectory() as folder:
        day = Day(server.url, "day", given.jobs, given.seed)
        pipeline = Pipeline(PipelineOptions(redis=server.url, prefix="day", lake=folder, engine=given.engine))
        asyncio.run(day.live(lambda: asyncio.to_thread(pipeline.run_once)))
        print(f"seed {day.seed}: {dict(day.outcomes)}, {day.by_node} attempts by Node", flush=True)
        print(pipeline.run_once(), flush=True)
        check(day, pipeline)
        rows = rows_of(pipeline, day.queue)
        read = sum(rows[job][at]["worker"] is not None for job, at in day.unsure)
        print(f"every attempt is in the tables, once; {read} of {len(day.unsure)} unsure ones are complete")
        check_replay(day, pipeline)
        print("a replay with Redis empty changed no row", flush=True)
        if given.engine == "spark":
            pipeline.spark.stop()


if __name__ == "__main__":
    main()
