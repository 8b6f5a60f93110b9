"""Holds what was measured: every run of every contender, and the conditions."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.contenders import Contender
from benchmarks.figures import Run, Summary, summarize
from benchmarks.workloads import Workload


@dataclass(slots=True)
class Record:
    """All runs so far by workload and contender, and all failures."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    conditions: dict[str, dict[str, object]] = field(default_factory=dict)  # of the machine, by workload

    def note(self, workload: Workload, contender: Contender, run: Run) -> None:
        self.runs.setdefault(workload.name, {}).setdefault(contender.name, []).append(run)

    def results(self) -> dict[str, dict[str, dict[str, Summary]]]:
        return {
            workload: {name: summarize(several) for name, several in contenders.items()}
            for workload, contenders in self.runs.items()
        }
