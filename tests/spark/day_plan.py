"""What the handlers of a test workload will do with each job, decided by a seed before anything runs."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from toril import Backoff, JobOptions, NewJob

ATTEMPTS = 5
_TEXTS = (
    "service {n}: connect to port {k} refused",
    "order {n} is unknown",
    "line {n} of the invoice\nis empty",
    "Überweisung {n} abgelehnt: später",
    "Error: wrapped {n}",
    "busy",  # the same text each time
    "",
    "child process failed",
    "machine {n} is hot\n    at the bottom (hall:{k}:1)\nand dry",
    "answer {n}: Error: no\n    at least once",
    "job {n}: Traceback (most recent call last):\n  File unknown",
)
_BACKOFFS = (None, Backoff.fixed(0.02), Backoff.exponential(0.01))

Step = list[Any]  # kind of the error, outcome of the attempt, text of the error
Plan = list[Step]


class Planner:
    """Plans of jobs. Attempt number n of a job raises the error of its step n, or completes when there is none."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._texts = 0

    def plan(self, *, attempts: int = ATTEMPTS, completes: bool = False) -> Plan:
        """Steps of one job. A job that has failed goes on with the next step if somebody runs it again."""
        if self.chance.random() < 0.6 and not completes:
            return []
        steps = self.chance.randrange(1, attempts if completes else attempts + 2)
        return [self._step(at, attempts, completes) for at in range(steps)]

    def _step(self, at: int, attempts: int, completes: bool) -> Step:
        kinds = ("transient", "named") if completes else ("transient", "transient", "named", "permanent")
        kind = self.chance.choice(kinds)
        self._texts += 1
        text = self.chance.choice(_TEXTS).format(n=self._texts, k=self.chance.randrange(9999))
        return [kind, "failed" if kind == "permanent" or at + 1 >= attempts else "retried", text]

    def jobs(self, count: int) -> list[NewJob]:
        return [self._job(n) for n in range(count)]

    def _job(self, number: int) -> NewJob:
        attempts = self.chance.choice((1, 3, ATTEMPTS, ATTEMPTS))
        options = JobOptions(
            attempts=attempts,
            backoff=self.chance.choice(_BACKOFFS),
            delay=0.3 if self.chance.random() < 0.03 else 0.0,
            priority=self.chance.choice((0, 0, 2)),
            remove_on_complete=self.chance.random() < 0.05,
        )
        data = {"plan": self.plan(attempts=attempts), "hang": number < 300 and self.chance.random() < 0.1}
        return NewJob(f"kind-{number % 3}", data, options)


def step_of(plan: Sequence[Step] | None, made: int) -> Step | None:
    """What the next attempt does after so many were made."""
    return plan[made] if plan and made < len(plan) else None


def patterns_of(errors: Iterable[str | None]) -> Counter[str]:
    """How often each kind of error was raised: its first line, without numbers and without the word for it."""
    said = [error.partition("\n")[0].removeprefix("Error: ") for error in errors if error is not None]
    return Counter(re.sub(r"\d+", "<n>", one) for one in said)
