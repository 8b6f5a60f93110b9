"""The jobs and handlers of the demo.

    email     short, most of them; one in eight fails once and is retried
    report    longer, with progress and log lines
    import    fails for good
    reminder  delayed

Guarantee: the outcome of every job is determined by its data, so the counts at the end are known before the start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from toril.errors import PermanentError, TransientError
from toril.jobs import Job
from toril.protocol.backoff import Backoff
from toril.protocol.options import JobOptions, NewJob

QUEUE = "demo"
SHARES = {"report": 0.1, "import": 0.05, "reminder": 0.15}
# One email in eight fails once.
FLAKY_EVERY = 8


@dataclass(slots=True)
class Tally:
    """Counts of jobs by outcome."""

    added: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    reports: dict[str, float] = field(default_factory=dict)  # progress of running reports

    @property
    def done(self) -> int:
        return self.completed + self.failed


def planned_jobs(count: int) -> list[NewJob]:
    """Returns `count` jobs of all names, shuffled."""
    jobs: list[NewJob] = []
    for kind, share in SHARES.items():
        jobs += (_job(kind, number) for number in range(1, max(1, round(count * share)) + 1))
    jobs += (_job("email", number) for number in range(1, max(1, count - len(jobs)) + 1))
    random.Random(7).shuffle(jobs)
    return jobs[:count] if count < len(jobs) else jobs


def _job(kind: str, number: int) -> NewJob:
    backoff = Backoff.fixed(0.25)
    match kind:
        case "email":
            data = {"to": f"reader-{number}@example.org", "flaky": number % FLAKY_EVERY == 0}
            return NewJob(kind, data, JobOptions(attempts=3, backoff=backoff))
        case "report":
            return NewJob(kind, {"pages": 5, "number": number}, JobOptions(priority=2))
        case "reminder":
            return NewJob(kind, {"number": number}, JobOptions(delay=0.2 + (number % 5) * 0.2))
        case _:
            return NewJob(kind, {"file": f"table-{number}.csv"}, JobOptions(attempts=3, backoff=backoff))


def expected_failures(jobs: list[NewJob]) -> int:
    """Returns how many of them fail for good."""
    return sum(job.name == "import" for job in jobs)


class DemoHandlers:
    """The handlers of the worker. `pace` scales their durations."""

    def __init__(self, tally: Tally, pace: float) -> None:
        self._tally = tally
        self._pace = pace

    def handlers(self) -> dict[str, Callable[[Job], Awaitable[Any]]]:
        return {"email": self.email, "report": self.report, "reminder": self.email, "import": self.refuse}

    async def email(self, job: Job) -> dict[str, bool]:
        await asyncio.sleep(random.uniform(0.01, 0.06) * self._pace)
        if job.data.get("flaky") and job.attempts_made == 0:
            raise TransientError("the mail server is busy")
        return {"sent": True}

    async def report(self, job: Job) -> dict[str, int]:
        pages = job.data["pages"]
        for page in range(1, pages + 1):
            await asyncio.sleep(0.06 * self._pace)
            await job.update_progress(round(page / pages * 100), f"page {page} of {pages}")
            self._tally.reports[job.id] = page / pages
        self._tally.reports.pop(job.id, None)
        return {"pages": pages}

    async def refuse(self, job: Job) -> None:
        await asyncio.sleep(0.01 * self._pace)
        raise PermanentError(f"{job.data['file']} has no header")
