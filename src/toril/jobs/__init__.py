"""Job in an event loop, and its blocking twin for threads and processes."""

from __future__ import annotations

from toril.jobs._face import Dependencies
from toril.jobs.blocking import BlockingJob
from toril.jobs.desk import BlockingDesk, JobDesk
from toril.jobs.job import Job

__all__ = ["BlockingDesk", "BlockingJob", "Dependencies", "Job", "JobDesk"]
