"""Pure functions from DataFrame to DataFrame: events become timelines, attempts, figures, errors and alerts.

Guarantee: nothing here reads or writes; the same rows in, the same rows out, in any order and any partitioning.
"""

from __future__ import annotations

from toril.spark.transforms.alerts import alerts
from toril.spark.transforms.errors import errors, with_fingerprint
from toril.spark.transforms.gaps import gaps
from toril.spark.transforms.queue_metrics import queue_hour, queue_minute
from toril.spark.transforms.rules import DEFAULT_RULES, Rule
from toril.spark.transforms.timelines import attempts, job_timelines, jobs, orphans
from toril.spark.transforms.workers import workers

__all__ = [
    "DEFAULT_RULES",
    "Rule",
    "alerts",
    "attempts",
    "errors",
    "gaps",
    "job_timelines",
    "jobs",
    "orphans",
    "queue_hour",
    "queue_minute",
    "with_fingerprint",
    "workers",
]
