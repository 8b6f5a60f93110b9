"""The options of a task backend, from `TASKS[alias]["OPTIONS"]`.

Guarantee: a name that is no option is refused with the nearest one, when Django makes the backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from toril.protocol.backoff import Backoff
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.option_names import refuse_unknown
from toril.protocol.options import KeepJobs

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """The options of a task backend."""

    redis: str | None = None  # None: TORIL_REDIS_URL, or the embedded server
    prefix: str = BULLMQ_PREFIX
    enqueue_on_commit: bool = True  # in a transaction, add the job when it is committed
    database: str = "default"  # whose transactions are meant
    attempts: int = 1  # of tasks without this option
    backoff: float | Backoff | None = None  # between attempts
    job_timeout: float | None = None  # seconds for one attempt
    keep_completed: float = DAY  # seconds in which a result can be read
    keep_failed: float = 7 * DAY
    concurrency: int = 10  # of `toril_worker`, for each queue

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BackendOptions:
        """Options from the settings."""
        refuse_unknown(given, [one.name for one in fields(cls)], "an option of TorilBackend")
        return cls(**given)

    @property
    def removal(self) -> dict[str, KeepJobs]:
        """The options of jobs that say when they are removed."""
        return {
            "remove_on_complete": KeepJobs(age=self.keep_completed),
            "remove_on_fail": KeepJobs(age=self.keep_failed),
        }
