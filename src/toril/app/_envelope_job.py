"""The job object of an envelope, so that tasks of list and stream queues see what those of BullMQ queues see.

Guarantee: it has the id, name, data and attempts of the envelope. Lists and streams store neither logs nor progress:
these stay in memory.
"""

from __future__ import annotations

from toril.jobs import BlockingJob, DetachedBlockingJob, DetachedJob, DetachedState, Job
from toril.jobs.detached import detached_record
from toril.protocol.codec import to_json
from toril.protocol.codecs import plain
from toril.protocol.envelope import Envelope
from toril.protocol.options import JobOptions
from toril.protocol.record import JobRecord

AnyJob = Job | BlockingJob | Envelope

WHY = "it is in a list or stream queue"


def data_of(job: AnyJob) -> bytes:
    """The data of a job as JSON; raises if it is encoded and the queue has no codecs."""
    return plain(to_json(job.payload) if isinstance(job, Envelope) else job.plain_data())


def as_job(job: AnyJob) -> Job:
    """A job with the methods of `Job`."""
    if isinstance(job, Envelope):
        return DetachedJob(record_of(job), "envelopes", DetachedState(why=WHY))
    return job  # type: ignore[return-value]  # the worker gives the asyncio job where it is expected


def as_blocking_job(job: AnyJob) -> BlockingJob:
    """A job with the methods of `BlockingJob`."""
    if isinstance(job, Envelope):
        return DetachedBlockingJob(record_of(job), "envelopes", DetachedState(why=WHY))
    return job  # type: ignore[return-value]  # the worker gives the blocking job where it is expected


def record_of(envelope: Envelope) -> JobRecord:
    """The record of an envelope, as a BullMQ job would have it."""
    return detached_record(
        envelope.task_type,
        to_json(envelope.payload),
        job_id=envelope.job_id,
        options=JobOptions(attempts=max(1, envelope.max_attempts)),
        attempts_made=envelope.attempts,
        timestamp=envelope.meta.enqueued_at,
    )
