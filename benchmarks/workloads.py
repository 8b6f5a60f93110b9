"""The workloads that are measured, each with its contenders, size and number of rounds.

Guarantee: the quick plan has every workload that a target needs, except list and stream queues and `always`. It takes
about ten minutes on two cores. The full plan has all workloads with more jobs and contenders. Each workload runs
without persistence, and then with an append-only file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import single_calls
from benchmarks.contenders import FEATURES, ON_LISTS, ON_STREAMS, OTHER_PYTHON, Contender
from benchmarks.environment import Environment
from benchmarks.persistence import LABELS, Persistence

Measure = Callable[[Environment, Contender, Mapping[str, Any]], Mapping[str, float]]

QUEUE = "benchmark"
NODE = ("node-5", "node-6")
RIVALS = (*NODE, "bullmq-py", *OTHER_PYTHON)
# The fastest of the other Python libraries. The full plan measures all of them.
FAST_PYTHON = ("dramatiq", "huey", "saq")
# The job options that toril writes by default, for Node: memory is compared for equal jobs.
EQUAL_OPTIONS = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
# Slow contenders run this fraction of the jobs, so that all runs take about the same time. Rates do not depend on it.
SLOW_SHARE = 8
# Workloads that the full plan also runs with a file that is synced at every write.
WITH_ALWAYS = ("process-100", "process-1", "bulk", "add-1", "add-50", "latency")
# Contenders that the full plan runs without persistence only, to save time.
SLOW_WITH_FILES = ("toril-uvloop", "arq", "docket", "celery", "rq")
SHALLOW = 1000  # waiting jobs of the queue with which longer ones are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload: what is measured, with which contenders and parameters."""

    name: str
    title: str
    measure: Measure
    jobs: int  # for fast contenders
    contenders: tuple[str, ...] = ("toril",)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Rounds. Workloads with one job at a time have more, because single slow moments affect them more.
    repeat: int = 3
    equal_jobs: bool = False  # slow contenders run as many jobs as fast ones
    persistence: Persistence = "none"  # of the server

    def run(self, environment: Environment, contender: Contender) -> Mapping[str, float]:
        share = 1 if contender.fast or self.equal_jobs else SLOW_SHARE
        return self.measure(
            environment, contender, {**self.parameters, "queue": QUEUE, "jobs": self.jobs // share}
        )


def persisted(workload: Workload, persistence: Persistence) -> Workload:
    """Returns the same workload on a server with this persistence."""
    return replace(
        workload,
        name=persisted_name(workload.name, persistence),
        title=f"{workload.title}, {LABELS[persistence]}",
        persistence=persistence,
    )


def persisted_name(name: str, persistence: Persistence) -> str:
    return name if persistence == "none" else f"{name}-{persistence}"


def _adding(
    environment: Environment, contender: Contender, parameters: Mapping[str, Any]
) -> Mapping[str, float]:
    return environment.add(contender, parameters)


def _processing(
    environment: Environment, contender: Contender, parameters: Mapping[str, Any]
) -> Mapping[str, float]:
    return environment.process(contender, parameters)


def _processing_in_two_processes(
    environment: Environment, contender: Contender, parameters: Mapping[str, Any]
) -> Mapping[str, float]:
    return environment.process(contender, parameters, processes=2)


def _latency(
    environment: Environment, contender: Contender, parameters: Mapping[str, Any]
) -> Mapping[str, float]:
    return environment.latency(contender, parameters)


def _at_depth(depth: int) -> Measure:
    def measure(
        environment: Environment, contender: Contender, parameters: Mapping[str, Any]
    ) -> Mapping[str, float]:
        return environment.depth(contender, parameters, depth)

    return measure


def processing(concurrency: int, jobs: int, *contenders: str) -> Workload:
    return Workload(
        name=f"process-{concurrency}",
        title=f"processing, concurrency {concurrency}, one process",
        measure=_processing,
        jobs=jobs,
        contenders=("toril", *contenders),
        parameters={"concurrency": concurrency},
        repeat=5 if concurrency == 1 else 3,
    )


def adding(concurrency: int, jobs: int, *contenders: str) -> Workload:
    return Workload(
        name=f"add-{concurrency}",
        title="single adds, one after another"
        if concurrency == 1
        else f"single adds, {concurrency} at a time",
        measure=_adding,
        jobs=jobs,
        contenders=("toril", *contenders),
        parameters={"task": "single", "concurrency": concurrency},
        repeat=5 if concurrency == 1 else 3,
    )


def bulk(jobs: int, *contenders: str) -> Workload:
    return Workload(
        name="bulk",
        title="bulk adds of 1,000",
        measure=_adding,
        jobs=jobs,
        contenders=("toril", *contenders),
        parameters={"task": "bulk"},
    )


def latency(samples: int, *contenders: str) -> Workload:
    return Workload(
        name="latency",
        title="one job on an idle worker",
        measure=_latency,
        jobs=samples,
        contenders=("toril", *contenders),
        parameters={"task": "latency"},
        equal_jobs=True,
        repeat=7,
    )


def growth(depth: int) -> Workload:
    return Workload(
        name=f"depth-{depth}",
        title=f"processing with {depth:,} jobs waiting",
        measure=_at_depth(depth),
        jobs=SHALLOW * 4 // 5,
        parameters={"concurrency": 100, "options": {"rounds": 100, "shallow": SHALLOW}},
        repeat=1,
    )


APP = Workload(
    name="app-100",
    title="processing tasks of an app, concurrency 100, beside a handler of a worker",
    measure=_processing,
    jobs=24_000,
    contenders=("toril", "toril-app"),
    parameters={"concurrency": 100},
    repeat=5,  # The difference is small.
)
FEATURES_100 = Workload(
    name="features-100",
    title="processing, concurrency 100, with one feature on at a time",
    measure=_processing,
    jobs=24_000,
    contenders=("toril", *FEATURES),
    parameters={"concurrency": 100},
    repeat=5,
)
MEMORY = Workload(
    name="memory",
    title="server memory of 10,000 completed jobs, equal options",
    measure=_processing,
    jobs=10_000,
    contenders=("toril", "node-5"),
    parameters={
        "concurrency": 100,
        "options": EQUAL_OPTIONS,
        "worker": "worker-0123456789abcdef",
        "scripts_known": True,
    },
)
MEMORY_UUID = replace(
    MEMORY,
    name="memory-uuid",
    title='server memory of 10,000 completed jobs, equal options, toril with ids="uuid"',
    parameters={**MEMORY.parameters, "ids": "uuid"},
)
RESIDENT = Workload(
    name="resident",
    title="memory of a worker after 100,000 jobs",
    measure=_processing,
    jobs=100_000,
    parameters={"concurrency": 100},
    repeat=1,
)
LIMITS = Workload(
    name="limits",
    title="single calls, concurrency 10",
    measure=single_calls.limits,
    jobs=3000,
    repeat=9,  # A run takes 1.5 s, so that one pause of the machine changes its p99.
)


def sweeping(jobs: int) -> Workload:
    return Workload(
        name=f"sweep-{jobs}",
        title=f"recovery and lock extension with {jobs:,} active jobs",
        measure=single_calls.sweeping,
        jobs=jobs,
    )


def quick_plan() -> list[Workload]:
    plan = [
        processing(100, 24_000, *NODE, "bullmq-py", *FAST_PYTHON),
        processing(1, 5000, "node-5"),
        bulk(30_000, "node-5"),
        adding(1, 3000, "node-5"),
        adding(50, 20_000, "node-5"),
        latency(120, "node-5"),
        APP,
        MEMORY,
        MEMORY_UUID,
        RESIDENT,
        LIMITS,
        sweeping(10_000),
        growth(1_000_000),
    ]
    return [one for workload in plan for one in (workload, persisted(workload, "everysec"))]


def full_plan() -> list[Workload]:
    plan = [
        *(processing(concurrency, 24_000, "toril-uvloop", *RIVALS) for concurrency in (100, 50, 10)),
        processing(1, 6000, "toril-uvloop", *RIVALS),
        processing(500, 60_000, "toril-uvloop", *NODE, "bullmq-py", *FAST_PYTHON),
        _two_processes(),
        bulk(30_000, "toril-uvloop", *RIVALS),
        adding(1, 4000, *RIVALS),
        adding(50, 16_000, "toril-uvloop", *RIVALS),
        latency(120, "toril-uvloop", *RIVALS),
        _payload(100, 16_000, concurrency=50),
        _payload(10_000, 8000, concurrency=50),
        _payload(1_000_000, 200, concurrency=5),
        *(_mixed(mix) for mix in ("retries", "delayed", "prioritized")),
        _on_kind("list", ON_LISTS),
        _on_kind("stream", ON_STREAMS),
        APP,
        FEATURES_100,
        MEMORY,
        MEMORY_UUID,
        replace(RESIDENT, contenders=("toril", "node-5")),
        LIMITS,
        sweeping(10_000),
        sweeping(100_000),
        *(growth(10**power) for power in range(3, 7)),
    ]
    return [one for workload in plan for one in (workload, *_with_files(workload))]


def _with_files(workload: Workload) -> list[Workload]:
    """Returns the workload with an append-only file, beside the rivals that matter most."""
    fewer = replace(
        workload, contenders=tuple(name for name in workload.contenders if name not in SLOW_WITH_FILES)
    )
    modes: tuple[Persistence, ...] = ("everysec", "always") if workload.name in WITH_ALWAYS else ("everysec",)
    return [persisted(fewer, mode) for mode in modes]


def _two_processes() -> Workload:
    return Workload(
        name="two-processes",
        title="processing, two processes of concurrency 50",
        measure=_processing_in_two_processes,
        jobs=32_000,
        contenders=("toril", *NODE, "bullmq-py", *FAST_PYTHON),
        parameters={"concurrency": 50},
    )


def _payload(size: int, jobs: int, *, concurrency: int) -> Workload:
    return Workload(
        name=f"payload-{size}",
        title=f"processing, payloads of {size:,} bytes, concurrency {concurrency}",
        measure=_processing,
        jobs=jobs,
        contenders=("toril", *NODE, "bullmq-py"),
        parameters={"concurrency": concurrency, "payload_bytes": size},
        equal_jobs=size > 100_000,
    )


def _mixed(mix: str) -> Workload:
    titles = {
        "retries": "processing, one job in ten fails once",
        "delayed": "processing, every other job was delayed",
        "prioritized": "processing, every other job has a priority",
    }
    return Workload(
        name=mix,
        title=f"{titles[mix]}, concurrency 100",
        measure=_processing,
        jobs=16_000,
        contenders=("toril", *NODE),
        parameters={"concurrency": 100, "mix": mix},
    )


def _on_kind(kind: str, rivals: tuple[str, ...]) -> Workload:
    return Workload(
        name=kind,
        title=f"{kind} queues, processing at concurrency 100",
        measure=_processing,
        jobs=24_000,
        contenders=(f"toril-{kind}", *rivals),
        parameters={"concurrency": 100},
    )
