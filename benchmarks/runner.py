"""Runs the workloads of a plan in interleaved rounds, and records the figures.

Guarantee: each round runs every contender of a workload once (A B C, A B C …), so that load on the machine affects
all of them. A run that fails is recorded, and the others continue.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.environment import Environment, RunFailed, Unsupported
from benchmarks.figures import Summary
from benchmarks.installation import NotInstalled, install
from benchmarks.machine_load import conditions
from benchmarks.persistence import Persistence
from benchmarks.record import Record
from benchmarks.workloads import Workload


class BenchmarkRunner:
    """Runs workloads, each in the environment with its persistence."""

    def __init__(
        self,
        environment_of: Callable[[Persistence], Environment],
        *,
        repeat: int | None = None,
        rivals: Sequence[str] | None = None,
    ) -> None:
        self._environment_of = environment_of
        self._repeat = repeat  # rounds of every workload; None means what the workload says
        self._rivals = rivals
        self._unavailable: set[str] = set()
        self.record = Record()

    def run(self, workload: Workload) -> Mapping[str, Mapping[str, Summary]]:
        """Runs all rounds of one workload; returns the summaries of the contenders that were measured."""
        # The entry exists even if all runs fail, so that its targets count as missed.
        self.record.runs.setdefault(workload.name, {})
        contenders = self._available(workload)
        self.record.conditions[workload.name] = conditions()
        for number in range(self._repeat or workload.repeat):
            for contender in list(contenders):
                if not self._run_once(workload, contender, number):
                    contenders.remove(contender)
        return self.record.results()[workload.name]

    def _available(self, workload: Workload) -> list[Contender]:
        wanted = [CONTENDERS[name] for name in workload.contenders if self._is_wanted(name)]
        return [one for one in wanted if self._is_installed(one)]

    def _is_wanted(self, name: str) -> bool:
        ours = CONTENDERS[name].folder == "toril" and not CONTENDERS[name].needs_uvloop
        return ours or self._rivals is None or name in self._rivals

    def _is_installed(self, contender: Contender) -> bool:
        if contender.name in self._unavailable:
            return False
        try:
            install(contender)
        except NotInstalled as error:
            self._unavailable.add(contender.name)
            self._record_failure(f"{contender.label} cannot be installed: {error}")
            return False
        return True

    def _run_once(self, workload: Workload, contender: Contender, number: int) -> bool:
        """Runs once; returns False if the contender cannot run this workload."""
        began = time.monotonic()
        try:
            run = workload.run(self._environment_of(workload.persistence), contender)
        except Unsupported:
            return False
        except (RunFailed, AssertionError) as error:
            self._record_failure(f"{workload.name}, {contender.label}: {error}")
            return False
        self.record.note(workload, contender, run)
        metric, figure = next(iter(run.items()))
        took = time.monotonic() - began
        print(
            f"  {workload.name} #{number + 1} {contender.label}: {metric} {figure:,.1f} ({took:.1f} s)",
            file=sys.stderr,
        )
        return True

    def _record_failure(self, failure: str) -> None:
        self.record.failures.append(failure)
        print(f"  {failure}", file=sys.stderr)
