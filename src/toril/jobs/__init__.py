"""`Job` for event loops, and `BlockingJob` for threads and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.lazy_names import lazy_names

if TYPE_CHECKING:
    from toril.jobs.blocking import BlockingJob
    from toril.jobs.calls import BlockingJobCalls, JobCalls
    from toril.jobs.dependencies import Dependencies
    from toril.jobs.detached import DetachedBlockingJob, DetachedJob, DetachedState
    from toril.jobs.job import Job
    from toril.jobs.job_batch import JobBatch

__all__ = [
    "BlockingJob",
    "BlockingJobCalls",
    "Dependencies",
    "DetachedBlockingJob",
    "DetachedJob",
    "DetachedState",
    "Job",
    "JobBatch",
    "JobCalls",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BlockingJob": "toril.jobs.blocking",
        "BlockingJobCalls": "toril.jobs.calls",
        "Dependencies": "toril.jobs.dependencies",
        "DetachedBlockingJob": "toril.jobs.detached",
        "DetachedJob": "toril.jobs.detached",
        "DetachedState": "toril.jobs.detached",
        "Job": "toril.jobs.job",
        "JobBatch": "toril.jobs.job_batch",
        "JobCalls": "toril.jobs.calls",
    },
)
