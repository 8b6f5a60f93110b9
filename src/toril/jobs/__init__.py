"""Job in an event loop, and its blocking twin for threads and processes."""

from __future__ import annotations

from toril.jobs.base import Dependencies
from toril.jobs.blocking import BlockingJob
from toril.jobs.calls import BlockingJobCalls, JobCalls
from toril.jobs.job import Job

__all__ = ["BlockingJob", "BlockingJobCalls", "Dependencies", "Job", "JobCalls"]
