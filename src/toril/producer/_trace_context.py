"""The trace context that travels with a job.

Guarantee: what the caller gave wins, and a job that shall carry no context carries none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toril.protocol.options import JobOptions, NewJob


def carrying(options: JobOptions | Mapping[str, Any] | None, carrier: str | None) -> Mapping[str, Any]:
    """The options as a mapping, with the context unless it is there already or unwanted."""
    given = options.given_fields() if isinstance(options, JobOptions) else dict(options or {})
    if carrier is None or given.get("omit_context") or given.get("telemetry_metadata") is not None:
        return given
    return {**given, "telemetry_metadata": carrier}


def each_carrying(job: NewJob | tuple[Any, ...], carrier: str | None) -> tuple[Any, ...] | NewJob:
    """One job of many, with the context; what is no job is left for the drafter to refuse."""
    match job:
        case NewJob(name, data, options):
            return name, data, carrying(options, carrier)
        case (name, data):
            return name, data, carrying(None, carrier)
        case (name, data, options):
            return name, data, carrying(options, carrier)
    return job


def name_of(job: NewJob | tuple[Any, ...]) -> str:
    """The name of one job of many."""
    return job.name if isinstance(job, NewJob) else str(next(iter(job), ""))
