"""The attributes of a job that its record holds.

Guarantee: reading an attribute costs no I/O and decodes only that attribute.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from toril.protocol.options import JobOptions, ParentRef
from toril.protocol.record import JobRecord


class JobAttributes:
    """What a job is, as it was last read."""

    __slots__ = ()

    record: JobRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        """The name that was given to `add`."""
        return self.record.name

    @property
    def opts(self) -> dict[str, Any]:
        """The options as they are stored, under BullMQ's names."""
        return self.record.opts

    @property
    def options(self) -> JobOptions:
        """The options as `JobOptions`."""
        return self.record.options

    @property
    def group(self) -> str | None:
        """The group of the job; None if it has none."""
        return self.record.group

    @property
    def priority(self) -> int:
        """1 is the highest; 0 means none. Of a job with a group: where it stands in the order of the groups."""
        return self.record.priority

    @property
    def delay(self) -> float:
        """Seconds by which the job is, or was last, delayed."""
        return self.record.delay

    @property
    def timestamp(self) -> datetime:
        """When it was added."""
        return self.record.timestamp

    @property
    def processed_on(self) -> datetime | None:
        """When a worker last fetched it."""
        return self.record.processed_on

    @property
    def finished_on(self) -> datetime | None:
        """When it completed or failed."""
        return self.record.finished_on

    @property
    def attempts_made(self) -> int:
        """Attempts that ended."""
        return self.record.attempts_made

    @property
    def attempts_started(self) -> int:
        """Attempts that began."""
        return self.record.attempts_started

    @property
    def max_attempts(self) -> int:
        """The number of attempts that its options allow."""
        return self.record.max_attempts

    @property
    def stalled_count(self) -> int:
        """How often it was found stalled."""
        return self.record.stalled_count

    @property
    def failed_reason(self) -> str | None:
        """Why the last attempt failed."""
        return self.record.failed_reason

    @property
    def stacktrace(self) -> list[str]:
        """The stack traces of failed attempts, oldest first."""
        return self.record.stacktrace

    @property
    def processed_by(self) -> str | None:
        """The worker that last fetched it."""
        return self.record.processed_by

    @property
    def parent(self) -> ParentRef | None:
        """The job that waits for this one."""
        return self.record.parent

    @property
    def deduplication_id(self) -> str | None:
        """The id under which duplicates of it are dropped."""
        return self.record.deduplication_id

    @property
    def repeat_job_key(self) -> str | None:
        """The id of the scheduler that added it."""
        return self.record.repeat_job_key

    @property
    def result_of(self) -> str | None:
        """The key of the job whose result is the data of this one (`results_to`)."""
        return self.record.result_of

    def as_json(self) -> dict[str, Any]:
        """The job in JSON types, under Node's names, times in milliseconds; what has no value is left out.

        Encoded payloads are as they are stored.
        """
        return self.record.as_dict()
