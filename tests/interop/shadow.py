"""The shadow run: workers of both kinds on one queue, until every job has ended.

While they work, the whole keyspace is looked at every now and then and must be in order each time. In the end nothing
is lost, no attempt was made twice, both kinds have had their share, and the two are put side by side.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.interop.consistency import inconsistencies
from tests.interop.scenarios import QUEUE, Ground, Result, start_toril_worker, until_ended
from tests.interop.workload import Work, workload, wrong_ends

EACH = 10  # Jobs at the same time for each kind of worker.
LOOK_EVERY = 0.2  # Seconds between two looks at the keyspace; a look itself holds the server for some 20 ms.
BEYOND_CHANCE = 5.0  # Standard deviations: once in two million runs.
LEAST_SHARE = 0.1  # Either kind must have done this part at least; which does more is a matter of speed.


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one kind of worker did."""

    runs: int
    failures: int
    median_ms: float
    slowest_ms: float  # the 95th percentile

    @property
    def error_rate(self) -> float:
        return self.failures / self.runs if self.runs else 0.0

    def __str__(self) -> str:
        rate = f"{self.error_rate:.1%} of runs failed"
        return f"{self.runs} runs, {rate}, run time p50 {self.median_ms:.0f} ms p95 {self.slowest_ms:.0f} ms"


@dataclass(frozen=True, slots=True)
class Runs:
    """The jobs that one kind of worker started, and its failures."""

    started: Sequence[str]
    failed: Sequence[Any]


async def shadow(ground: Ground, jobs: int) -> Result:
    works = workload(jobs, seed=5)
    looks = _Looks(ground)
    handle = f"{ground.prefix}-shadow"
    async with ground.bench() as bench, ground.queue() as queue:
        half = jobs // 2
        toril_worker = await start_toril_worker(ground, EACH)
        node_told = await bench.start_worker(handle, concurrency=EACH, name="node")
        watching = asyncio.create_task(looks.watch())
        adding = bench.ask("add_bulk", jobs=[work.for_node() for work in works[:half]])
        await asyncio.gather(adding, queue.add_bulk([work.for_toril() for work in works[half:]]))
        await until_ended(ground, jobs)
        watching.cancel()
        await asyncio.wait([watching])
        toril_said, _ = await toril_worker.communicate(b"")
        await bench.stop(handle)
    told = toril_said.decode().split()
    runs = {
        "toril": Runs([line for line in told if line[0] != "!"], [line for line in told if line[0] == "!"]),
        "node": Runs([item["id"] for item in node_told.of("active")], node_told.of("failed")),
    }
    return _judged(ground, works, runs, looks)


class _Looks:
    """Looks at the running queue; each must find it in order."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.count = 0
        self.problems: list[str] = []

    async def watch(self) -> None:
        while True:
            keyspace = await asyncio.to_thread(self._ground.keyspace)
            self.count += 1
            self.problems += [
                f"look {self.count}: {one}" for one in inconsistencies(keyspace, QUEUE, self._ground.prefix)
            ]
            await asyncio.sleep(LOOK_EVERY)  # Between two looks at a moving thing; nothing waits for it.


def _judged(ground: Ground, works: Sequence[Work], runs: Mapping[str, Runs], looks: _Looks) -> Result:
    keyspace = ground.keyspace()
    wrong = [
        *looks.problems,
        *wrong_ends(keyspace, QUEUE, works, ground.prefix),
        *inconsistencies(keyspace, QUEUE, ground.prefix),
        *_wrong_number_of_runs(works, runs),
    ]
    hashes: Any = [keyspace[f"{ground.prefix}:{QUEUE}:{work.id}"].content for work in works]
    shares = {kind: _share(kind, made, hashes) for kind, made in runs.items()}
    total = sum(share.runs for share in shares.values())
    wrong += [
        f"{kind} did {share.runs} of {total} runs"
        for kind, share in shares.items()
        if share.runs < LEAST_SHARE * total
    ]
    wrong += _unequal_errors(shares)
    sides = "; ".join(f"{kind}: {share}" for kind, share in shares.items())
    return Result(
        scenario="shadow: both kinds of workers",
        jobs=len(works),
        differences=wrong,
        note=f"{looks.count} looks at the keyspace; {sides}",
    )


def _unequal_errors(shares: Mapping[str, Share]) -> list[str]:
    """Which kind gets which job is a matter of chance; their error rates must not differ by more than chance does."""
    runs = [share.runs for share in shares.values()]
    rate = sum(share.failures for share in shares.values()) / max(1, sum(runs))
    by_chance = math.sqrt(rate * (1 - rate) * sum(1 / max(1, one) for one in runs))
    rates = {kind: share.error_rate for kind, share in shares.items()}
    apart = max(rates.values()) - min(rates.values())
    return [f"error rates differ: {rates}"] if apart > BEYOND_CHANCE * by_chance else []


def _wrong_number_of_runs(works: Sequence[Work], runs: Mapping[str, Runs]) -> list[str]:
    made = Counter(job_id for kind in runs.values() for job_id in kind.started)
    return [
        f"{work.id} ran {made[work.id]} times instead of {work.runs}"
        for work in works
        if made[work.id] != work.runs
    ]


def _share(kind: str, made: Runs, hashes: Sequence[Mapping[str, str]]) -> Share:
    """Times are those of the runs that ended a job."""
    spans = [
        int(fields["finishedOn"]) - int(fields["processedOn"])
        for fields in hashes
        if fields.get("pb") == kind
    ]
    cuts = statistics.quantiles(spans, n=20) if len(spans) > 1 else [0.0] * 19
    return Share(runs=len(made.started), failures=len(made.failed), median_ms=cuts[9], slowest_ms=cuts[18])
