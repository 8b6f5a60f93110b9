"""The error that a caller gets who waits for a job that failed."""

from __future__ import annotations

from toril.commands import read
from toril.errors import JobFailed
from toril.jobs._operations import Operation
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord


def read_failure(keys: QueueKeys, job_id: str, reason: bytes) -> Operation[JobFailed]:
    """Returns the error with the reason, and with the stack traces if they are still stored."""
    (raw,) = yield read.get_fields(keys, job_id, ["stacktrace"])
    traces = JobRecord(job_id, {b"stacktrace": raw}).stacktrace if raw else []
    return JobFailed(job_id, reason.decode(errors="replace"), traces)
