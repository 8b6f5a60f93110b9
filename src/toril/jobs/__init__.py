"""`Job` for event loops, and `BlockingJob` for threads and processes."""

from __future__ import annotations

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
