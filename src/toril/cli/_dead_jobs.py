"""Jobs that failed for good, whatever the kind of their queue: one face for the commands.

On a BullMQ queue these are the jobs of the failed set; on list and stream queues the dead letters. A letter has an id
of its own (where it lies) beside the id of its job; either names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from toril.backends.dead_letters import parse_filter
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption
from toril.jobs import Job
from toril.producer import ListQueue, Queue, StreamQueue
from toril.protocol.envelope import DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which of them: all that is given must hold."""

    ids: tuple[str, ...] = ()
    name: str | None = None
    reason: str | None = None  # a part of the error
    terms: str | None = None  # a filter in words

    def __bool__(self) -> bool:
        return bool(self.ids or self.name or self.reason or self.terms)


class DeadJobs(Protocol):
    """The jobs of one queue that failed for good."""

    def rows(self, choice: Choice, *, newest_first: bool = True) -> AsyncIterator[dict[str, Any]]:
        """What there is to say about each."""

    async def replay(self, choice: Choice, *, rate: float | None, limit: int | None) -> int:
        """Gives them another life; how many."""

    async def purge(self, choice: Choice, *, limit: int | None) -> int:
        """Removes them for good; how many."""


@asynccontextmanager
async def opened(target: Target, where: QueueName, *, look: bool = False) -> AsyncIterator[DeadJobs]:
    """The graves of a queue."""
    if where.kind == "bullmq":
        async with target.bullmq(where, "dlq", look=look) as queue:
            yield _FailedJobs(queue)
    else:
        async with target.envelopes(where) as letters:
            yield _Letters(letters)


class _Letters:
    """The dead letters of a list or stream queue."""

    def __init__(self, queue: ListQueue | StreamQueue) -> None:
        self._queue = queue

    async def rows(self, choice: Choice, *, newest_first: bool = True) -> AsyncIterator[dict[str, Any]]:
        async for letter in self._queue.dead_letters(_letter_wanted(choice), newest_first=newest_first):
            yield _letter_row(letter)

    async def replay(self, choice: Choice, *, rate: float | None, limit: int | None) -> int:
        return await self._queue.replay(_letter_wanted(choice), rate=rate, limit=limit)

    async def purge(self, choice: Choice, *, limit: int | None) -> int:
        return await self._queue.purge(_letter_wanted(choice), limit=limit)


def _letter_wanted(choice: Choice) -> Callable[[DeadLetter], bool]:
    chosen = parse_filter(choice.terms) if choice.terms else None

    def matches(letter: DeadLetter) -> bool:
        return (
            (not choice.ids or letter.entry_id in choice.ids or letter.job_id in choice.ids)
            and (choice.name is None or letter.task_type == choice.name)
            and (choice.reason is None or choice.reason in letter.last_error)
            and (chosen is None or chosen(letter))
        )

    return matches


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "job_id": letter.job_id,
        "entry_id": letter.entry_id,
        "name": letter.task_type,
        "attempts": letter.envelope.attempts,
        "at": letter.dlq_ts,
        "error": letter.last_error or letter.dlq_reason,
        "reason": letter.dlq_reason,
        "job": letter.as_dict(),
    }


class _FailedJobs:
    """The failed set of a BullMQ queue."""

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue

    async def rows(self, choice: Choice, *, newest_first: bool = True) -> AsyncIterator[dict[str, Any]]:
        for job in await self._jobs(choice, newest_first=newest_first):
            yield _job_row(job)

    async def _jobs(self, choice: Choice, *, newest_first: bool) -> list[Job]:
        wanted = _job_wanted(choice)
        failed = await self._queue.get_dead_letters()  # newest first
        return [job for job in (failed if newest_first else reversed(failed)) if wanted(job)]

    async def replay(self, choice: Choice, *, rate: float | None, limit: int | None) -> int:
        return await self._queue.retry_jobs(limit=limit, where=_job_wanted(choice), rate=rate)

    async def purge(self, choice: Choice, *, limit: int | None) -> int:
        doomed = (await self._jobs(choice, newest_first=False))[:limit]
        for job in doomed:
            await self._queue.remove(job.id)
        return len(doomed)


def _job_wanted(choice: Choice) -> Callable[[Job], bool]:
    if choice.terms:
        raise InvalidOption("filter", "is for list and stream queues", "use --name and --reason")
    return lambda job: (
        (not choice.ids or job.id in choice.ids)
        and (choice.name is None or job.name == choice.name)
        and (choice.reason is None or choice.reason in (job.failed_reason or ""))
    )


def _job_row(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "entry_id": None,
        "name": job.name,
        "attempts": job.attempts_made,
        "at": None if job.finished_on is None else job.finished_on.isoformat(),
        "error": job.failed_reason or "",
        "reason": "failed",
        "job": job.record.as_dict(),
    }
