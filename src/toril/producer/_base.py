"""What the parts of `Queue` share."""

from __future__ import annotations

from typing import Generic, TypeVar

from toril.commands import read
from toril.commands.command import Command
from toril.errors import InvalidOption, TorilError
from toril.jobs import Job, JobCalls
from toril.jobs.type_variables import T
from toril.producer._connection import QueueConnection
from toril.protocol.keys import QueueKeys
from toril.protocol.option_parts import MAX_COUNT, check_integer
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport

V = TypeVar("V")

# Jobs read in one pipeline: a reply of some hundred kilobytes for usual payloads.
JOBS_AT_ONCE = 200


def check_lookup_id(job_id: object) -> str:
    """Checks the id of a job to look for: any text, because other clients may have made it."""
    if not isinstance(job_id, str):
        raise InvalidOption(
            "job_id", f"must be a string, not {type(job_id).__name__}", "Node's numbers are text, too"
        )
    if not job_id:
        raise InvalidOption("job_id", "is empty", "give the id of a job")
    try:
        job_id.encode()
    except UnicodeEncodeError:
        raise InvalidOption("job_id", "contains a lone surrogate", "use valid Unicode text") from None
    return job_id


def check_count(field: str, value: object, least: int = 0) -> int:
    """Checks a number of jobs, events or the like."""
    return check_integer(field, value, least, MAX_COUNT)


class QueuePart(Generic[T]):
    """The keys of a queue, and its connection."""

    keys: QueueKeys
    _transport: AsyncTransport
    _connection: QueueConnection
    _calls: JobCalls

    @property
    def name(self) -> str:
        return self.keys.name

    async def _run(self, command: Command[V]) -> V:
        return await self._connection.run(command)

    async def _jobs(self, ids: list[str]) -> list[Job[T]]:
        """Returns jobs by id, in order, without those that were removed meanwhile.

        A key of another type in the place of a job is a job without fields: one bad key must not hide the others.
        """
        jobs: list[Job[T]] = []
        for start in range(0, len(ids), JOBS_AT_ONCE):
            part = ids[start : start + JOBS_AT_ONCE]
            hashes = await self._connection.replies(*(read.get_job(self.keys, job_id) for job_id in part))
            jobs += (
                Job(JobRecord.from_flat(job_id, () if isinstance(flat, TorilError) else flat), self._calls)
                for job_id, flat in zip(part, hashes, strict=True)
                if flat
            )
        return jobs
