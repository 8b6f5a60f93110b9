"""Workers and errors of attempts, against what those who ran them wrote down."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.spark.factory import TOKEN, Factory
from tests.spark.makers import Factories, Pipelines
from tests.spark.records import Record, Records, differences, rows_of, workers_missing
from toril import Job, Queue, Worker
from toril.commands.manage import reprocess
from toril.commands.worker import Pickup, Settlement, packed_fields, settle
from toril.errors import InvalidOption
from toril.spark.pipeline import Pipeline, PipelineOptions


def to_silver(pipeline: Pipeline) -> Pipeline:
    pipeline.ingest()
    pipeline.refine()
    return pipeline


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "late": {"backoff": {"type": "fixed", "delay": 1}},
    "short": {"backoff": 1, "stackTraceLimit": 2},
    "traceless": {"stackTraceLimit": 0},
}


@dataclass
class Fate:
    """Runs the jobs of a queue, decides by chance what becomes of each, and writes down every attempt."""

    factory: Factory
    chance: random.Random
    records: Records = field(default_factory=Records)
    # How a job went back without an error.
    unfailed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _traces: dict[str, list[str]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def add(self, count: int) -> None:
        for kind, words in KINDS.items():
            self.factory.add(count, attempts=99, prefix=kind, **words)

    def run(self, turns: int | None = None) -> None:
        """So many turns, or until nothing is left to do; in each one a worker takes a few jobs."""
        for _ in itertools.count() if turns is None else range(turns):
            worker = f"worker-{self.chance.randrange(4)}"
            pickup = Pickup(token=TOKEN, lock_ms=60_000, worker=worker)
            taken, more_at = self._settle([], pickup, take=self.chance.randrange(1, 6))
            if not taken and not more_at:
                return
            for job in taken:
                self._decide(job, pickup, time.time())

    def _settle(self, settlements: list[Settlement], pickup: Pickup, take: int = 0) -> tuple[list[str], int]:
        factory = self.factory
        now = factory.transport.now_ms()
        found = factory.transport.run(
            settle(factory.keys, settlements, capacity=take, pickup=pickup, now_ms=now)
        )
        assert not [one for one in found.ack_errors if one is not None]
        return [job for job, _ in found.jobs], found.next_at_ms

    def _decide(self, job: str, pickup: Pickup, began: float) -> None:
        turn = self.chance.random()
        if turn < 0.08:
            self._note(job, "stalled", None, pickup, began)
            return self.factory.let_stall([job], max_stalled=99)
        if turn < 0.16:
            kind: Any = "wait" if turn < 0.12 else "delayed"
            self.unfailed[job].add(kind)
            value, options = ("", "") if kind == "wait" else ("1", "1")
            self._note(job, "retried", None, pickup, began)
            return self._end(Settlement(job, kind, pickup.token, value, options), pickup)
        if turn < 0.6:
            return self._fail(job, pickup, began, turn)
        options_of_finish = self.factory._options(1)
        self._note(job, "completed", None, pickup, began)
        return self._end(Settlement(job, "completed", pickup.token, "1", options_of_finish), pickup)

    def _end(self, settlement: Settlement, pickup: Pickup) -> None:
        self._settle([settlement], pickup)

    def _fail(self, job: str, pickup: Pickup, began: float, turn: float) -> None:
        error = f"error {next(self._numbers)} of {job}"
        traces = self._traces.setdefault(job, [])
        traces.append(f"Error: {error}\n    at main.js:1:1")
        limit = KINDS[job.split("-", maxsplit=1)[0]].get("stackTraceLimit", 99)
        del traces[: max(0, len(traces) - limit)]
        fields = packed_fields({"failedReason": error, "stacktrace": json.dumps(traces)})
        if turn < 0.25:
            end = Settlement(job, "failed", pickup.token, error, self.factory._options(1), fields)
        elif "backoff" in KINDS[job.split("-", maxsplit=1)[0]]:
            end = Settlement(job, "delayed", pickup.token, "1", "0", fields)
        else:
            end = Settlement(job, "retry", pickup.token, "LPUSH", "", fields)
        self._note(job, "failed" if turn < 0.25 else "retried", error, pickup, began)
        self._end(end, pickup)

    def _note(self, job: str, outcome: str, error: str | None, pickup: Pickup, began: float) -> None:
        ended = None if outcome == "stalled" else time.time()
        self.records.note(job, outcome, error, pickup.worker, began, ended)

    def unsure(self) -> set[tuple[str, int]]:
        """Attempts of which the hash keeps no trace, or which are mixed with others that went back without an error."""
        return {
            (job, at)
            for job, attempts in self.records.by_job().items()
            for at, one in enumerate(attempts)
            if one.outcome == "retried" and not self._is_kept(job, at, attempts)
        }

    def _is_kept(self, job: str, at: int, attempts: Sequence[Record]) -> bool:
        """Whether the traces that a hash holds tell what an attempt failed with."""
        if self._is_mixed(job) or job.startswith("traceless"):
            return False
        failed = [place for place, one in enumerate(attempts) if one.error is not None]
        return not job.startswith("short") or at in failed[-KINDS["short"]["stackTraceLimit"] :]

    def _is_mixed(self, job: str) -> bool:
        return bool(self.unfailed[job] - ({"wait"} if job.startswith("late") else set()))

    def send_back(self) -> None:
        """Every third job that has ended is run again."""
        last = {one.job_id: one.outcome for one in self.records.all}
        for job in [job for job, end in last.items() if end in ("completed", "failed")][::3]:
            state: Any = last[job]
            self.factory.transport.run(reprocess(self.factory.keys, job, state=state))


@pytest.mark.parametrize("often", [False, True])
def test_every_error_stands_at_the_attempt_that_raised_it(
    make_pipeline: Pipelines, factory: Factories, often: bool
) -> None:
    fate = Fate(factory("fate"), random.Random(f"fate {often}"))
    fate.add(60)
    pipeline = make_pipeline()
    for _ in range(3 if often else 0):
        fate.run(40)
        to_silver(pipeline)
    fate.run()
    fate.send_back()
    fate.run()
    to_silver(pipeline)
    rows = rows_of(pipeline, "fate")
    assert workers_missing(fate.records, rows) == []
    assert differences(fate.records, rows, unsure=fate.unsure()) == []


def test_an_attempt_that_was_given_back_takes_no_error_from_others(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    """A worker that stops gives its job back; the failures before and after it are delayed, as with any backoff."""
    fate = Fate(factory("given"), random.Random(1))
    (job,) = fate.factory.add(1, attempts=9, prefix="late", **KINDS["late"])
    for turns, turn in enumerate((0.5, 0.1, 0.5, 0.9), 1):
        fate.chance.random = lambda turn=turn: turn  # type: ignore[method-assign, misc]
        while len(fate.records.all) < turns:  # it may be delayed for a millisecond
            fate.run(1)
    rows = rows_of(to_silver(make_pipeline()), "given")
    assert differences(fate.records, rows) == []
    assert [row["error"] is None for row in rows[job]] == [False, True, False, True]


async def use_once(url: str, prefix: str, queue: str, worker: str, records: Records) -> None:
    """One use of an id by one worker: added, run, removed by hand when the next one comes."""

    async def handle(job: Job[Any]) -> None:
        began = time.time()
        records.note(job.id, "completed", None, worker, began, time.time())

    async with Queue(queue, redis=url, prefix=prefix) as jobs:
        before = await jobs.get_job("same")
        if before is not None:
            await before.remove()
        await jobs.add("work", {}, job_id="same")
        async with Worker(queue, handle, redis=url, prefix=prefix, worker_id=worker) as running:
            await running.run_until_idle()


async def test_a_hash_completes_only_the_use_of_an_id_that_it_was_read_in(
    valkey_url: str, prefix: str, make_pipeline: Pipelines, tmp_path: Path
) -> None:
    """Three uses of one id by three workers; the tables are brought up to date at the end, each time, or in between."""
    queues = {"end": Records(), "each": Records(), "between": Records()}
    pipelines = {name: make_pipeline(queues=name, lake=tmp_path / name) for name in queues}
    for turn in range(3):
        for name, records in queues.items():
            await use_once(valkey_url, prefix, name, f"worker-{turn}", records)
        await asyncio.to_thread(to_silver, pipelines["each"])
        if turn:  # what was read before the id was used again is refined after it
            await asyncio.to_thread(pipelines["between"].refine)
        await asyncio.to_thread(pipelines["between"].ingest)
    for name in ("end", "between"):
        await asyncio.to_thread(to_silver, pipelines[name])
    found = {name: rows_of(pipelines[name], name) for name in queues}
    assert [differences(queues[name], found[name]) for name in queues] == [[], [], []]
    workers = {name: [row["worker"] for row in rows["same"]] for name, rows in found.items()}
    last = [None, None, "worker-2"]
    assert workers == {"end": last, "each": ["worker-0", "worker-1", "worker-2"], "between": last}


def test_no_more_is_filled_than_is_kept() -> None:
    with pytest.raises(
        InvalidOption, match="fill: 'all' needs hashes that are not kept with snapshots 'failed'"
    ):
        PipelineOptions(snapshots="failed", fill="all")
    with pytest.raises(InvalidOption, match="say snapshots 'failed', or fill 'none'"):
        PipelineOptions(snapshots="none", fill="failed")
    assert [PipelineOptions(snapshots=one).filled for one in ("all", "failed", "none")] == [
        "all",
        "failed",
        "none",
    ]
    assert PipelineOptions(snapshots="all", fill="failed").filled == "failed"
