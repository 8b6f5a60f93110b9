"""Changing a queue as a whole.

Guarantee: what touches many jobs does so in bounded calls, so that nobody else on the server waits long; what is
refused raises an error that says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final, Literal, get_args

from toril.commands import manage, read
from toril.commands.manage import CleanState
from toril.commands.once import Calls
from toril.errors import InvalidOption, JobLocked, JobNotFound, JobNotInState, ScriptRefused
from toril.jobs import Job
from toril.jobs.base import FinalState, T, log_line, progress_to_json
from toril.jobs.calls import KEEP_LOGS
from toril.producer._base import JOBS_AT_ONCE, QueuePart, asked_count, asked_id
from toril.protocol.duration import Duration, datetime_to_ms, to_ms, to_seconds
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import RateLimit
from toril.protocol.state import JobState

logger = logging.getLogger("toril.queue")

# Jobs changed by one call: some 20 ms of the server's time.
BATCH: Final = 1000
# Jobs removed by one call, with all that belongs to them: some 10 ms of the server's time.
REMOVE_BATCH: Final = 500
# How long word of a cancellation waits for the worker: many times the second in which it looks.
CANCEL_LIFE_MS: Final = 60_000
# A job that is taken while we look is found locked at the second look; more often than that only its children are.
CANCEL_LOOKS: Final = 3
# Clients know the server's time to within half a round trip.
CLOCK_SLACK_MS: Final = 1000

Reason = str | re.Pattern[str]


class Management(QueuePart[T]):
    """Pauses, empties, retries, limits."""

    # --- the whole queue ------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Workers take no more jobs of this queue; those that run go on."""
        await self._run(manage.pause(self.keys))

    async def resume(self) -> None:
        """Workers take jobs again."""
        await self._run(manage.resume(self.keys))

    @knows_its_names("an argument of drain")
    async def drain(self, *, delayed: bool = False) -> int:
        """Removes all jobs that wait, and the delayed ones if asked; returns how many.

        Active and finished jobs stay, and so do the next runs of schedulers and jobs that arrive while it works. It
        works in bounded calls: what is left when it is interrupted waits as before.
        """
        calls, removed, cursor = Calls(self.keys), 0, b""
        while True:
            command = manage.drain(self.keys, most=REMOVE_BATCH, delayed=delayed, cursor=cursor, calls=calls)
            step = await self._run(command)
            removed += step.removed
            cursor = step.cursor
            if step.left_delayed:
                logger.warning(
                    "drain of %s may have left delayed jobs: events were trimmed before it read them; call it again, "
                    "or raise events_max_len",
                    self.keys.name,
                )
            if not cursor:
                return removed

    @knows_its_names("an argument of clean")
    async def clean(
        self, grace: Duration = 0, limit: int = 0, state: str | JobState = JobState.COMPLETED
    ) -> list[str]:
        """Removes jobs of a state that are older than `grace`, at most `limit` (0: all); returns their ids."""
        age_ms = to_ms(to_seconds("grace", grace))
        which = _cleanable(state)
        asked_count("limit", limit)
        removed: list[str] = []
        calls = Calls(self.keys)
        # Without a grace all jobs are meant, also those whose worker's idea of the time is a little ahead of ours.
        before_ms = await self._prepared() - (age_ms or -CLOCK_SLACK_MS)
        while not limit or len(removed) < limit:
            batch = min(REMOVE_BATCH, limit - len(removed)) if limit else REMOVE_BATCH
            command = manage.clean(self.keys, which, before_ms=before_ms, limit=batch, calls=calls)
            ids = await self._run(command)
            removed += ids
            if len(ids) < batch and not (
                ids and batch == REMOVE_BATCH and await self._has_more(which, batch - len(ids))
            ):
                break
        return removed

    async def _has_more(self, state: CleanState, kept: int) -> bool:
        """Whether a call that kept so many jobs (next runs of schedulers, young ones) has not looked at others."""
        # Of finished jobs it keeps none: all that are left are too young.
        if state in ("completed", "failed"):
            return False
        return (await self._run(read.get_counts(self.keys)))[state] > kept

    @knows_its_names("an argument of obliterate")
    async def obliterate(self, *, force: bool = False) -> None:
        """Destroys the queue and all its jobs. Refuses while jobs are active, unless forced."""
        await self.pause()
        calls = Calls(self.keys)
        while await self._run(manage.obliterate(self.keys, count=REMOVE_BATCH, force=force, calls=calls)):
            pass
        async for keys in self._own_keys():
            await self._run(manage.delete_keys(keys))

    async def _own_keys(self) -> AsyncIterator[list[str]]:
        cursor = "0"
        while True:
            cursor, found = await self._run(read.scan_toril_keys(self.keys, cursor))
            if found:
                yield found
            if cursor == "0":
                return

    async def trim_events(self, max_len: int) -> int:
        """Shortens the event stream to about `max_len`; returns how many events were removed."""
        return await self._run(manage.trim_events(self.keys, asked_count("max_len", max_len)))

    # --- limits ---------------------------------------------------------------------------------------------

    async def set_global_concurrency(self, limit: int | None) -> None:
        """How many jobs may be active at once over all workers; None lifts the limit."""
        if limit is not None:
            asked_count("limit", limit, least=1)
        await self._run(manage.set_global_concurrency(self.keys, limit))

    async def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """How many jobs may start in a time over all workers; None lifts the limit."""
        if limit is not None and not isinstance(limit, RateLimit):
            raise InvalidOption(
                "limit", f"is a {type(limit).__name__}", "give RateLimit(count, period), or None"
            )
        pair = None if limit is None else (limit.count, to_ms(limit.period))
        await self._run(manage.set_global_rate_limit(self.keys, pair))

    async def rate_limit(self, duration: Duration) -> None:
        """For this long no job is taken by workers with a rate limit, nor by any if the queue has one, as in BullMQ."""
        span_ms = to_ms(to_seconds("duration", duration, positive=True))
        await self._run(manage.start_rate_limit(self.keys, span_ms))

    async def remove_rate_limit_key(self) -> None:
        """Forgets what was counted towards the rate limit: workers go on at once."""
        await self._run(manage.remove_rate_limit(self.keys))

    # --- single jobs ----------------------------------------------------------------------------------------

    async def remove(self, job_id: str, *, children: bool = True) -> None:
        """Removes a job and its children; raises `JobLocked` while one of them is being worked on."""
        await self._run(manage.remove(self.keys, asked_id(job_id), children=children))

    async def cancel(self, job_id: str, reason: str = "cancelled") -> Literal["asked", "removed"]:
        """Ends a job before its time: one that waits is removed, the worker of one that runs is asked to stop it.

        Raises `JobNotFound`, `JobNotInState` when the job has ended already, or `JobLocked` when it waits for a child
        that is being worked on.
        """
        for _ in range(CANCEL_LOOKS):
            found = await self._run_all(
                read.get_state(self.keys, asked_id(job_id)), read.get_lock(self.keys, job_id)
            )
            state, token = JobState.parse(found[0]), found[1]
            if state is JobState.UNKNOWN or state.is_final:
                raise (JobNotFound if state is JobState.UNKNOWN else JobNotInState)(job_id, command="cancel")
            if token is not None:
                await self._run(manage.request_cancel(self.keys, job_id, token, reason, CANCEL_LIFE_MS))
                return "asked"
            with contextlib.suppress(JobLocked):  # taken since we looked, or one of its children is
                await self._run(manage.remove(self.keys, job_id))
                return "removed"
        raise JobLocked(job_id, command="cancel", hint="one of its children is: cancel that first")

    async def update_job_progress(self, job_id: str, progress: Any) -> None:
        """Says how far a job is, from outside of its handler."""
        raw = progress_to_json(progress)
        await self._run(manage.update_progress(self.keys, asked_id(job_id), raw, self._calls.calls))

    async def add_job_log(self, job_id: str, line: str, *, keep: int = KEEP_LOGS) -> int:
        """Appends a line to a job's log and keeps the newest `keep`, 0: none; returns how many lines it has now."""
        asked_count("keep", keep)
        command = manage.add_log(
            self.keys, asked_id(job_id), log_line(line), keep=keep, calls=self._calls.calls
        )
        return await self._run(command)

    async def remove_deduplication_key(self, deduplication_id: str) -> bool:
        """Lets the next job with this id in; False when nothing kept it out."""
        return await self._run(manage.remove_deduplication_key(self.keys, deduplication_id))

    # --- many jobs ------------------------------------------------------------------------------------------

    @knows_its_names("an argument of retry_jobs")
    async def retry_jobs(
        self,
        *,
        state: FinalState = "failed",
        limit: int | None = None,
        timestamp: datetime | None = None,
        name: str | None = None,
        reason: Reason | None = None,
        where: Callable[[Job[T]], bool] | None = None,
        rate: float | None = None,
    ) -> int:
        """Sends finished jobs back to the queue, oldest first, at most `limit`; returns how many.

        `timestamp` means those that ended up to then; `name`, `reason` (a part of the text, or a pattern) and `where`
        choose among them; `rate` is how many go back each second at most. Jobs that end again meanwhile are left alone.
        """
        if rate is not None and rate <= 0:
            raise InvalidOption("rate", f"is {rate}", "give jobs per second")
        if state not in get_args(FinalState):
            raise InvalidOption("state", f"is {state!r}", f"choose one of {', '.join(get_args(FinalState))}")
        if limit is not None:
            asked_count("limit", limit)
        until_ms = None if timestamp is None else datetime_to_ms("timestamp", timestamp)
        # Oldest first, and no more than there are now: a job that fails again stands behind them.
        there = await self._run(read.count_ended(self.keys, state, until_ms))
        most = there if limit is None else min(limit, there)
        if name is None and reason is None and where is None:
            return await self._retry_all(state, most, until_ms, _Pace(rate))
        return await self._retry_some(state, there, most, _Pace(rate), _matcher(name, reason, where))

    async def _retry_all(self, state: FinalState, limit: int, until_ms: int | None, pace: _Pace) -> int:
        calls, moved, more = Calls(self.keys), 0, limit > 0
        while more and moved < limit:
            batch = pace.batch(min(BATCH, limit - moved))
            command = manage.move_jobs_to_wait(self.keys, state, count=batch, until_ms=until_ms, calls=calls)
            count, more = await self._run(command)
            moved += count
            await pace.keep(count, more and moved < limit)
        return moved

    async def _retry_some(
        self, state: FinalState, there: int, limit: int, pace: _Pace, wanted: Callable[[Job[T]], bool]
    ) -> int:
        calls, moved, skipped = Calls(self.keys, at_once=JOBS_AT_ONCE), 0, 0
        while moved < limit and moved + skipped < there:
            size = min(pace.batch(JOBS_AT_ONCE), there - moved - skipped)
            page = read.get_ranges(self.keys, [state], start=skipped, end=skipped + size - 1, ascending=True)
            ids = await self._run(page)
            if not ids:
                break
            chosen = [job for job in await self._jobs(ids) if wanted(job)][: limit - moved]
            retried = await self._reprocess(chosen, state, calls)
            moved += retried
            skipped += len(ids) - retried
            await pace.keep(retried, retried > 0)
        return moved

    async def _reprocess(self, jobs: list[Job[T]], state: FinalState, calls: Calls) -> int:
        commands = [
            manage.reprocess(self.keys, job.id, state=state, lifo=bool(job.opts.get("lifo")), calls=calls)
            for job in jobs
        ]
        results = await self._transport.run_many(commands)
        # A job that somebody else retried or removed meanwhile is none of ours.
        self._values([one for one in results if not isinstance(one, ScriptRefused)])
        return sum(one is None for one in results)

    @knows_its_names("an argument of promote_jobs")
    async def promote_jobs(self, *, limit: int | None = None) -> int:
        """Makes delayed jobs ready now, all or at most `limit`, those that are due first; returns how many."""
        if limit is not None:
            asked_count("limit", limit)
        calls, moved, more = Calls(self.keys), 0, True
        while more and (limit is None or moved < limit):
            batch = BATCH if limit is None else min(BATCH, limit - moved)
            command = manage.move_jobs_to_wait(self.keys, "delayed", count=batch, calls=calls)
            count, more = await self._run(command)
            moved += count
        return moved


class _Pace:
    """Not more than `rate` jobs in a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate

    def batch(self, size: int) -> int:
        """How many to move at once: what a tenth of a second allows."""
        return size if self._rate is None else max(1, min(size, int(self._rate / 10)))

    async def keep(self, moved: int, more: bool) -> None:
        if self._rate is not None and more:
            await asyncio.sleep(moved / self._rate)


def _matcher(
    name: str | None, reason: Reason | None, where: Callable[[Job[T]], bool] | None
) -> Callable[[Job[T]], bool]:
    pattern = re.compile(re.escape(reason)) if isinstance(reason, str) else reason

    def matches(job: Job[T]) -> bool:
        if name is not None and job.name != name:
            return False
        if pattern is not None and not pattern.search(job.failed_reason or ""):
            return False
        return where is None or bool(where(job))

    return matches


_CLEANABLE: Final[dict[JobState, CleanState]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.WAITING: "wait",
    JobState.PAUSED: "paused",
    JobState.ACTIVE: "active",
    JobState.DELAYED: "delayed",
    JobState.PRIORITIZED: "prioritized",
}


def _cleanable(state: str | JobState) -> CleanState:
    found = _CLEANABLE.get(JobState.parse(state))
    if found is None:
        raise InvalidOption("state", f"{state} cannot be cleaned", f"choose one of {', '.join(_CLEANABLE)}")
    return found
