"""What is measured: each work with its contenders, its size and how often it is done.

Guarantee: the quick plan holds every work that a target needs and ends within five minutes on two cores; the full plan
holds all of it, at length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import single_calls
from benchmarks.contenders import ON_LISTS, ON_STREAMS, OTHER_PYTHON, Contender
from benchmarks.environment import Arena

Measure = Callable[[Arena, Contender, Mapping[str, Any]], Mapping[str, float]]

QUEUE = "benchmark"
NODE = ("node-5", "node-6")
RIVALS = (*NODE, "bullmq-py", *OTHER_PYTHON)
# Of the other Python libraries, these were the fastest of all; the full plan asks everybody.
FAST_PYTHON = ("dramatiq", "huey", "saq")
# BullMQ's own options for what toril writes by default: memory is compared between equals.
EQUAL_OPTIONS = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
# Slow contenders get fewer jobs, so that all runs take about as long; rates do not depend on it.
SLOW_SHARE = 8
SHALLOW = 1000  # waiting jobs of the queue beside which deep ones are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One thing to measure."""

    name: str
    title: str
    measure: Measure
    jobs: int  # for fast contenders
    contenders: tuple[str, ...] = ("toril",)
    words: Mapping[str, Any] = field(default_factory=dict)
    # Rounds. Where one job follows another, a slow moment of the machine weighs more than in a batch: there are more.
    repeat: int = 3
    equal_jobs: bool = False  # slow contenders get as many as fast ones

    def run(self, arena: Arena, contender: Contender) -> Mapping[str, float]:
        share = 1 if contender.fast or self.equal_jobs else SLOW_SHARE
        return self.measure(arena, contender, {**self.words, "queue": QUEUE, "jobs": self.jobs // share})


def _adding(arena: Arena, contender: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    return arena.add(contender, words)


def _processing(arena: Arena, contender: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    return arena.process(contender, words)


def _processing_by_two(arena: Arena, contender: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    return arena.process(contender, words, processes=2)


def _waiting(arena: Arena, contender: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
    return arena.latency(contender, words)


def _at_depth(depth: int) -> Measure:
    def measure(arena: Arena, contender: Contender, words: Mapping[str, Any]) -> Mapping[str, float]:
        return arena.depth(contender, words, depth)

    return measure


def processing(concurrency: int, jobs: int, *contenders: str) -> Work:
    return Work(
        name=f"process-{concurrency}",
        title=f"processing, concurrency {concurrency}, one process",
        measure=_processing,
        jobs=jobs,
        contenders=("toril", *contenders),
        words={"concurrency": concurrency},
        repeat=5 if concurrency == 1 else 3,
    )


def adding(concurrency: int, jobs: int, *contenders: str) -> Work:
    return Work(
        name=f"add-{concurrency}",
        title="single adds, one after another"
        if concurrency == 1
        else f"single adds, {concurrency} under way",
        measure=_adding,
        jobs=jobs,
        contenders=("toril", *contenders),
        words={"task": "single", "concurrency": concurrency},
        repeat=5 if concurrency == 1 else 3,
    )


def bulk(jobs: int, *contenders: str) -> Work:
    return Work(
        name="bulk",
        title="bulk adds of 1,000",
        measure=_adding,
        jobs=jobs,
        contenders=("toril", *contenders),
        words={"task": "bulk"},
    )


def latency(samples: int, *contenders: str) -> Work:
    return Work(
        name="latency",
        title="one job on an idle worker",
        measure=_waiting,
        jobs=samples,
        contenders=("toril", *contenders),
        words={"task": "latency"},
        equal_jobs=True,
        repeat=7,
    )


def growth(depth: int) -> Work:
    return Work(
        name=f"depth-{depth}",
        title=f"processing with {depth:,} jobs waiting",
        measure=_at_depth(depth),
        jobs=SHALLOW * 4 // 5,
        words={"concurrency": 100, "options": {"rounds": 100, "shallow": SHALLOW}},
        repeat=1,
    )


MEMORY = Work(
    name="memory",
    title="server memory of 10,000 completed jobs, equal options",
    measure=_processing,
    jobs=10_000,
    contenders=("toril", "node-5"),
    words={
        "concurrency": 100,
        "options": EQUAL_OPTIONS,
        "worker": "worker-0123456789abcdef",
        "scripts_known": True,
    },
    repeat=1,
)
RESIDENT = Work(
    name="resident",
    title="memory of a worker after 100,000 jobs",
    measure=_processing,
    jobs=100_000,
    words={"concurrency": 100},
    repeat=1,
)
LIMITS = Work(
    name="limits",
    title="limits of the data model, concurrency 10",
    measure=single_calls.limits,
    jobs=3000,
    repeat=9,  # A p99 of a second and a half is soon spoilt by a hiccup of the machine.
)


def sweeping(jobs: int) -> Work:
    return Work(
        name=f"sweep-{jobs}",
        title=f"recovery and lock extension with {jobs:,} active jobs",
        measure=single_calls.sweeping,
        jobs=jobs,
    )


def quick_plan() -> list[Work]:
    return [
        processing(100, 24_000, *NODE, "bullmq-py", *FAST_PYTHON),
        processing(1, 5000, "node-5"),
        bulk(30_000, "node-5"),
        adding(50, 20_000, "node-5"),
        latency(120, "node-5"),
        MEMORY,
        RESIDENT,
        LIMITS,
        sweeping(10_000),
        growth(1_000_000),
    ]


def full_plan() -> list[Work]:
    return [
        *(processing(concurrency, 24_000, "toril-uvloop", *RIVALS) for concurrency in (100, 50, 10)),
        processing(1, 6000, "toril-uvloop", *RIVALS),
        processing(500, 60_000, "toril-uvloop", *NODE, "bullmq-py", *FAST_PYTHON),
        _by_two(),
        bulk(30_000, "toril-uvloop", *RIVALS),
        adding(1, 4000, *RIVALS),
        adding(50, 16_000, "toril-uvloop", *RIVALS),
        latency(120, "toril-uvloop", *RIVALS),
        _payload(100, 16_000, concurrency=50),
        _payload(10_000, 8000, concurrency=50),
        _payload(1_000_000, 200, concurrency=5),
        *(_mixed(mix) for mix in ("retries", "delayed", "prioritized")),
        _on("list", ON_LISTS),
        _on("stream", ON_STREAMS),
        MEMORY,
        replace(RESIDENT, contenders=("toril", "node-5")),
        LIMITS,
        sweeping(10_000),
        sweeping(100_000),
        *(growth(10**power) for power in range(3, 7)),
    ]


def _by_two() -> Work:
    return Work(
        name="two-processes",
        title="processing, two processes of concurrency 50",
        measure=_processing_by_two,
        jobs=32_000,
        contenders=("toril", *NODE, "bullmq-py", *FAST_PYTHON),
        words={"concurrency": 50},
    )


def _payload(size: int, jobs: int, *, concurrency: int) -> Work:
    return Work(
        name=f"payload-{size}",
        title=f"processing, payloads of {size:,} bytes, concurrency {concurrency}",
        measure=_processing,
        jobs=jobs,
        contenders=("toril", *NODE, "bullmq-py"),
        words={"concurrency": concurrency, "payload_bytes": size},
        equal_jobs=size > 100_000,
    )


def _mixed(mix: str) -> Work:
    titles = {
        "retries": "processing, one job in ten fails once",
        "delayed": "processing, every other job was delayed",
        "prioritized": "processing, every other job has a priority",
    }
    return Work(
        name=mix,
        title=f"{titles[mix]}, concurrency 100",
        measure=_processing,
        jobs=16_000,
        contenders=("toril", *NODE),
        words={"concurrency": 100, "mix": mix},
    )


def _on(kind: str, rivals: tuple[str, ...]) -> Work:
    return Work(
        name=kind,
        title=f"{kind} queues, processing at concurrency 100",
        measure=_processing,
        jobs=24_000,
        contenders=(f"toril-{kind}", *rivals),
        words={"concurrency": 100},
    )
