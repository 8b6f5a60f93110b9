"""The trace context that is stored with a job.

Guarantee: a context that the caller gave is kept, and `omit_context` is respected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.producer.job_builder import GivenJob
from toril.protocol.options import JobOptions, NewJob


def with_trace_context(
    options: JobOptions | Mapping[str, object] | None, carrier: str | None
) -> Mapping[str, Any]:
    """Returns the options as a mapping, with the context unless they have one or omit it."""
    given = options.given_fields() if isinstance(options, JobOptions) else dict(options or {})
    if carrier is None or given.get("omit_context") or given.get("telemetry_metadata") is not None:
        return given
    return {**given, "telemetry_metadata": carrier}


def each_with_trace_context(job: GivenJob, carrier: str | None) -> GivenJob:
    """Returns one job of many with the context; what is no job is left for the job builder to refuse."""
    match job:
        case NewJob(name, data, options):
            return name, data, with_trace_context(options, carrier)
        case (name, data):
            return name, data, with_trace_context(None, carrier)
        case (name, data, options):
            return name, data, with_trace_context(options, carrier)
    return job


def name_of(job: GivenJob) -> str:
    """Returns the name of one job of many."""
    return job.name if isinstance(job, NewJob) else str(next(iter(job), ""))
