"""What was measured: every run of every contender, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.contenders import Contender
from benchmarks.figures import Run, Summary, summarize
from benchmarks.workloads import Work


@dataclass(slots=True)
class Record:
    """All runs so far, by work and contender, and what went wrong."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    conditions: dict[str, dict[str, object]] = field(default_factory=dict)  # of the machine, by work

    def note(self, work: Work, contender: Contender, run: Run) -> None:
        self.runs.setdefault(work.name, {}).setdefault(contender.name, []).append(run)

    def results(self) -> dict[str, dict[str, dict[str, Summary]]]:
        return {
            work: {name: summarize(several) for name, several in contenders.items()}
            for work, contenders in self.runs.items()
        }
