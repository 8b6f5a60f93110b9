"""The targets for toril's speed, and the check whether a run met them.

Guarantee: pure functions. A target whose workload was run but has no figure counts as missed. A target whose workload
was not part of the run is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.contenders import ON_LISTS, OTHER_PYTHON
from benchmarks.figures import Summary, best, ratio
from benchmarks.persistence import Persistence
from benchmarks.workloads import persisted_name

# Summaries by workload, contender and metric.
Results = Mapping[str, Mapping[str, Mapping[str, Summary]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound for a figure of toril, or for its ratio to the best of some rivals."""

    title: str
    workload: str
    metric: str = "rate"
    ours: str = "toril"
    against: tuple[str, ...] = ()  # empty: the bound is for the figure itself
    least: float | None = None
    most: float | None = None
    goal: float | None = None  # a better value to aim for; not checked

    def with_file(self, persistence: Persistence, bound: float | None = None) -> Target:
        """Returns the target for the same workload on a server with an append-only file."""
        least, most = self.least, self.most
        if bound is not None:
            least, most = (bound, None) if least is not None else (None, bound)
        return replace(
            self,
            title=f"{self.title}, {persistence}",
            workload=persisted_name(self.workload, persistence),
            least=least,
            most=most,
            goal=None,
        )

    @property
    def bound(self) -> str:
        sign, value = ("≥", self.least) if self.least is not None else ("≤", self.most)
        goal = f" (goal {self.goal:g})" if self.goal is not None else ""
        return f"{sign} {value:g}{' ×' if self.against else ''}{goal}"

    def met_by(self, figure: float) -> bool:
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, the measured figure, and the rival it was compared with."""

    target: Target
    figure: float | None
    rival: str | None = None

    @property
    def met(self) -> bool:
        return self.figure is not None and self.target.met_by(self.figure)


def _other_python(*, least: float) -> Target:
    return Target(
        title="processing, concurrency 100, beside the fastest other Python library",
        workload="process-100",
        against=OTHER_PYTHON,
        least=least,
    )


_PROCESSING = Target(
    title="processing, concurrency 100, beside Node 5.62.0",
    workload="process-100",
    against=("node-5",),
    least=2.5,
    goal=3.0,
)
# Kept without persistence and with a file that is synced every second.
_IN_BOTH: Sequence[Target] = (
    Target(
        title="processing, concurrency 100, beside Node 6.7.0",
        workload="process-100",
        against=("node-6",),
        least=1.3,
        goal=1.6,
    ),
    Target(
        title="processing, concurrency 100, beside bullmq-py",
        workload="process-100",
        against=("bullmq-py",),
        least=10,
    ),
    _other_python(least=5),
    Target(
        title="tasks of an app, concurrency 100, beside a handler of a worker",
        workload="app-100",
        ours="toril-app",
        against=("toril",),
        least=0.9,
    ),
    Target(
        title="processing, concurrency 1, beside Node 5.62.0", workload="process-1", against=("node-5",), least=1.25
    ),
    Target(title="bulk adds, beside Node 5.62.0", workload="bulk", against=("node-5",), least=1.5),
    Target(
        title="single adds, one after another, beside Node 5.62.0",
        workload="add-1",
        against=("node-5",),
        least=1.1,
    ),
    Target(
        title="50 concurrent single adds, beside Node 5.62.0", workload="add-50", against=("node-5",), least=1.0
    ),
    Target(
        title="latency on an idle worker, p50, beside Node 5.62.0",
        workload="latency",
        metric="started_p50",
        against=("node-5",),
        most=1.0,
    ),
    Target(
        title="latency on an idle worker, p99, beside Node 5.62.0",
        workload="latency",
        metric="started_p99",
        against=("node-5",),
        most=1.0,
    ),
    Target(
        title="client CPU for a job at concurrency 100, µs", workload="process-100", metric="client_us", most=30
    ),
    Target(title="worker's memory after 100,000 jobs, MB", workload="resident", metric="rss_mb", most=60),
    Target(
        title="server memory of 10,000 completed jobs, beside Node 5.62.0",
        workload="memory",
        metric="memory_mb",
        against=("node-5",),
        most=1.1,
    ),
    Target(
        title="server memory of 10,000 completed jobs, UUIDs as ids, beside Node 5.62.0",
        workload="memory-uuid",
        metric="memory_mb",
        against=("node-5",),
        most=1.25,
    ),
    Target(
        title="one sweep call, 10,000 active jobs, ms", workload="sweep-10000", metric="alive_ms", most=100
    ),
    Target(
        title="one sweep call, 10,000 stalled jobs, ms", workload="sweep-10000", metric="stalled_ms", most=100
    ),
    Target(
        title="other clients' p99 during sweeps, ms", workload="sweep-10000", metric="others_p99", most=100
    ),
    Target(
        title="10⁶ waiting jobs beside 10³", workload="depth-1000000", metric="beside_shallow", least=0.85
    ),
    Target(title="reading a job, p99, ms", workload="limits", metric="read_p99", most=10),
    Target(title="taking a job, p99, ms", workload="limits", metric="pickup_p99", most=5),
    Target(title="emitting an event, p99, ms", workload="limits", metric="event_p99", most=5),
    Target(
        title="list queue beside the fastest rival on lists",
        workload="list",
        ours="toril-list",
        against=ON_LISTS,
        least=2,
    ),
    Target(
        title="stream queue beside taskiq's stream broker",
        workload="stream",
        ours="toril-stream",
        against=("taskiq-stream",),
        least=2,
    ),
    Target(
        title="stream queue beside streaq", workload="stream", ours="toril-stream", against=("streaq",), least=2
    ),
)  # fmt: skip

TARGETS: Sequence[Target] = (
    _PROCESSING,
    _PROCESSING.with_file("everysec", 1.6),
    _PROCESSING.with_file("always", 1.4),
    Target(
        title="server CPU for a job at concurrency 100, beside Node 5.62.0, everysec",
        workload="process-100-everysec",
        metric="server_us",
        against=("node-5",),
        most=0.5,
    ),
    *_IN_BOTH,
    *(one.with_file("everysec") for one in _IN_BOTH),
)


def check_targets(results: Results, targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Returns a verdict for each target whose workload was part of the run."""
    return [_verdict(results, one) for one in targets if one.workload in results]


def _verdict(results: Results, target: Target) -> Verdict:
    ours = _median(results, target.workload, target.ours, target.metric)
    if ours is None:
        return Verdict(target, None)
    if not target.against:
        return Verdict(target, ours)
    medians = {name: _median(results, target.workload, name, target.metric) for name in target.against}
    known = {name: value for name, value in medians.items() if value is not None}
    rival = best(target.metric, known)
    return Verdict(target, None if rival is None else ratio(ours, known[rival]), rival)


def _median(results: Results, workload: str, contender: str, metric: str) -> float | None:
    found = results.get(workload, {}).get(contender, {}).get(metric)
    return None if found is None else found.median


def missed(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns one line for each target that was missed."""
    return [_line(one) for one in verdicts if not one.met]


def _line(verdict: Verdict) -> str:
    measured = "not measured" if verdict.figure is None else f"{verdict.figure:.2f}"
    return f"{verdict.target.title}: {measured}, wanted {verdict.target.bound}"
