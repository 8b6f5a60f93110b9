"""Jobs that failed for good, with one interface for all kinds of queues.

On a BullMQ queue these are the jobs of the failed set; on list and stream queues the dead letters. A dead letter has
an entry id beside the id of its job; either selects it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from toril.backends.dead_letters import parse_filter
from toril.cli._output import queue_warnings
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption, MalformedValue
from toril.jobs import Job
from toril.producer import ListQueue, Queue, StreamQueue
from toril.protocol.envelope import DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Criteria for jobs that failed for good: a job must match all of them."""

    ids: tuple[str, ...] = ()
    name: str | None = None
    reason: str | None = None  # a part of the error
    terms: str | None = None  # the text of --filter

    def __bool__(self) -> bool:
        return bool(self.ids or self.name or self.reason or self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """One job that failed for good, as it is printed."""

    job_id: str
    entry_id: str | None  # of a dead letter
    name: str
    attempts: int
    at: str | None  # when it failed
    error: str
    reason: str
    job: dict[str, Any]  # everything that is stored


class DeadJobs(Protocol):
    """The jobs of one queue that failed for good."""

    def rows(self, selection: Selection, *, newest_first: bool = True) -> AsyncIterator[DeadJob]:
        """Yields the facts of each."""

    async def replay(self, selection: Selection, *, rate: float | None, limit: int | None) -> int:
        """Puts them back into the queue; returns the number."""

    async def purge(self, selection: Selection, *, limit: int | None) -> int:
        """Removes them; returns the number."""


@asynccontextmanager
async def open_dead_jobs(
    target: Target, where: QueueName, *, read_only: bool = False
) -> AsyncIterator[DeadJobs]:
    """Opens the jobs of a queue that failed for good."""
    if where.kind == "bullmq":
        with queue_warnings():
            async with target.bullmq(where, "dlq", read_only=read_only) as queue:
                yield _FailedJobs(queue)
    else:
        async with target.envelopes(where) as queue:
            yield _DeadLetters(queue)


class _DeadLetters:
    """The dead letters of a list or stream queue."""

    def __init__(self, queue: ListQueue | StreamQueue) -> None:
        self._queue = queue

    async def rows(self, selection: Selection, *, newest_first: bool = True) -> AsyncIterator[DeadJob]:
        async for dead_letter in self._queue.dead_letters(
            _dead_letter_filter(selection), newest_first=newest_first
        ):
            yield _dead_letter_row(dead_letter)

    async def replay(self, selection: Selection, *, rate: float | None, limit: int | None) -> int:
        return await self._queue.replay(_dead_letter_filter(selection), rate=rate, limit=limit)

    async def purge(self, selection: Selection, *, limit: int | None) -> int:
        return await self._queue.purge(_dead_letter_filter(selection), limit=limit)


def _dead_letter_filter(selection: Selection) -> Callable[[DeadLetter], bool]:
    matches_terms = parse_filter(selection.terms) if selection.terms else None

    def matches(dead_letter: DeadLetter) -> bool:
        return (
            (
                not selection.ids
                or dead_letter.entry_id in selection.ids
                or dead_letter.job_id in selection.ids
            )
            and (selection.name is None or dead_letter.task_type == selection.name)
            and (selection.reason is None or selection.reason in dead_letter.last_error)
            and (matches_terms is None or matches_terms(dead_letter))
        )

    return matches


def _dead_letter_row(dead_letter: DeadLetter) -> DeadJob:
    return DeadJob(
        job_id=dead_letter.job_id,
        entry_id=dead_letter.entry_id,
        name=dead_letter.task_type,
        attempts=dead_letter.envelope.attempts,
        at=dead_letter.dlq_ts,
        error=dead_letter.last_error or dead_letter.dlq_reason,
        reason=dead_letter.dlq_reason,
        job=dead_letter.as_dict(),
    )


class _FailedJobs:
    """The failed set of a BullMQ queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def rows(self, selection: Selection, *, newest_first: bool = True) -> AsyncIterator[DeadJob]:
        for job in await self._jobs(selection, newest_first=newest_first):
            yield _job_row(job)

    async def _jobs(self, selection: Selection, *, newest_first: bool) -> list[Job]:
        matches = _job_filter(selection)
        failed = await self._queue.get_dead_letters()  # newest first
        return [job for job in (failed if newest_first else reversed(failed)) if matches(job)]

    async def replay(self, selection: Selection, *, rate: float | None, limit: int | None) -> int:
        return await self._queue.retry_jobs(limit=limit, where=_job_filter(selection), rate=rate)

    async def purge(self, selection: Selection, *, limit: int | None) -> int:
        selected = (await self._jobs(selection, newest_first=False))[:limit]
        for job in selected:
            await self._queue.remove(job.id)
        return len(selected)


def _job_filter(selection: Selection) -> Callable[[Job], bool]:
    if selection.terms:
        raise InvalidOption("filter", "is for list and stream queues", "use --name and --reason")
    return lambda job: (
        (not selection.ids or job.id in selection.ids)
        and (selection.name is None or job.name == selection.name)
        and (selection.reason is None or selection.reason in (job.failed_reason or ""))
    )


def _job_row(job: Job) -> DeadJob:
    return DeadJob(
        job_id=job.id,
        entry_id=None,
        name=job.name,
        attempts=_attempts_of(job),
        at=_ended_at(job),
        error=job.failed_reason or "",
        reason="failed",
        job=job.record.as_dict(),
    )


def _attempts_of(job: Job) -> int:
    try:
        return job.attempts_made
    except MalformedValue:  # another program's value: `toril inspect` shows it
        return 0


def _ended_at(job: Job) -> str | None:
    try:
        return None if job.finished_on is None else job.finished_on.isoformat()
    except MalformedValue:
        return None
