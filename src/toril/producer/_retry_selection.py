"""Which finished jobs `retry_jobs` sends back, and how fast."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from toril.jobs import Job
from toril.jobs.type_variables import T

Reason = str | re.Pattern[str]


class RetryLimiter:
    """Limits moves to `rate` jobs in a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate

    def batch(self, size: int) -> int:
        """Returns how many to move in one call: what a tenth of a second allows."""
        return size if self._rate is None else max(1, min(size, int(self._rate / 10)))

    async def wait(self, moved: int, more: bool) -> None:
        if self._rate is not None and more:
            await asyncio.sleep(moved / self._rate)


def matcher(
    name: str | None, reason: Reason | None, where: Callable[[Job[T]], bool] | None
) -> Callable[[Job[T]], bool]:
    """Returns a function that decides whether a job is retried."""
    pattern = re.compile(re.escape(reason)) if isinstance(reason, str) else reason

    def matches(job: Job[T]) -> bool:
        if name is not None and job.name != name:
            return False
        if pattern is not None and not pattern.search(job.failed_reason or ""):
            return False
        return where is None or bool(where(job))

    return matches
