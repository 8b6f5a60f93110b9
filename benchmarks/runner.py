"""Runs a plan: interleaved, round by round, and gathers what was measured.

Guarantee: within a round every contender of a work has its turn (A B C, A B C …), so that what disturbs the machine
disturbs all alike; a run that fails is told and the others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.environment import Arena, RunFailed, Unsupported
from benchmarks.figures import Summary
from benchmarks.installation import NotInstalled, install
from benchmarks.machine_load import conditions
from benchmarks.record import Record
from benchmarks.workloads import Work


class AttemptRunner:
    """Does works on one arena."""

    def __init__(
        self, arena: Arena, *, repeat: int | None = None, rivals: Sequence[str] | None = None
    ) -> None:
        self._arena = arena
        self._repeat = repeat  # rounds of every work, if somebody says so
        self._rivals = rivals
        self._absent: set[str] = set()
        self.record = Record()

    def run(self, work: Work) -> Mapping[str, Mapping[str, Summary]]:
        """All rounds of one work; the summaries of those who took part."""
        # Present even if all fail, so that targets know that it was tried.
        self.record.runs.setdefault(work.name, {})
        contenders = self._present(work)
        self.record.conditions[work.name] = conditions()
        for number in range(self._repeat or work.repeat):
            for contender in list(contenders):
                if not self._turn(work, contender, number):
                    contenders.remove(contender)
        return self.record.results()[work.name]

    def _present(self, work: Work) -> list[Contender]:
        wanted = [CONTENDERS[name] for name in work.contenders if self._is_wanted(name)]
        return [one for one in wanted if self._is_installed(one)]

    def _is_wanted(self, name: str) -> bool:
        ours = CONTENDERS[name].folder == "toril" and not CONTENDERS[name].needs_uvloop
        return ours or self._rivals is None or name in self._rivals

    def _is_installed(self, contender: Contender) -> bool:
        if contender.name in self._absent:
            return False
        try:
            install(contender)
        except NotInstalled as error:
            self._absent.add(contender.name)
            self._tell(f"{contender.label} cannot take part: {error}")
            return False
        return True

    def _turn(self, work: Work, contender: Contender, number: int) -> bool:
        """One run; False when there is no point in another."""
        began = time.monotonic()
        try:
            run = work.run(self._arena, contender)
        except Unsupported:
            return False
        except (RunFailed, AssertionError) as error:
            self._tell(f"{work.name}, {contender.label}: {error}")
            return False
        self.record.note(work, contender, run)
        metric, figure = next(iter(run.items()))
        took = time.monotonic() - began
        print(
            f"  {work.name} #{number + 1} {contender.label}: {metric} {figure:,.1f} ({took:.1f} s)",
            file=sys.stderr,
        )
        return True

    def _tell(self, failure: str) -> None:
        self.record.failures.append(failure)
        print(f"  {failure}", file=sys.stderr)
