"""The methods of `Queue` that change it.

Guarantee: a change of many jobs is done in bounded calls, so that other clients of the server do not wait long.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Final, Literal, get_args

from toril.commands import cleaning, manage, read, worker
from toril.commands.cleaning import CleanState, clean
from toril.commands.once import Calls
from toril.errors import InvalidOption, JobLocked, JobNotFound, JobNotInState, ScriptRefused
from toril.jobs import Job
from toril.jobs.base import FinalState
from toril.jobs.calls import KEEP_LOGS
from toril.jobs.stored_values import log_line, progress_to_json
from toril.jobs.type_variables import T
from toril.producer._base import JOBS_AT_ONCE, QueuePart, check_count, check_lookup_id
from toril.producer._connection import raise_first_error
from toril.producer._retry_selection import Reason, RetryLimiter, matcher
from toril.producer._unchangeable_jobs import is_data_error, is_lifo, warn_of_unchangeable
from toril.protocol.codec import to_json
from toril.protocol.duration import Duration, datetime_to_ms, to_ms, to_seconds
from toril.protocol.event import KNOWN_EVENTS
from toril.protocol.keys import RESERVED_IDS, check_text
from toril.protocol.option_names import knows_its_names
from toril.protocol.state import JobState
from toril.protocol.worker_options import RateLimit

logger = logging.getLogger("toril.queue")

# Jobs changed by one call: some 20 ms of the server's time.
BATCH: Final = 1000
# Jobs removed by one call, with all that belongs to them: some 10 ms of the server's time.
REMOVE_BATCH: Final = 500
# How long a request to cancel is stored: many times the second within which workers read it.
CANCEL_TTL_MS: Final = 60_000
# A job that is fetched meanwhile is locked at the second look; after that only one of its children can be.
CANCEL_ATTEMPTS: Final = 3
# Clients know the server's time to within half a round trip.
CLOCK_SLACK_MS: Final = 1000
# Jobs that one call examines when it looks for orphans: some milliseconds of the server's time.
LOOKED_AT: Final = 200


class Management(QueuePart[T]):
    """Pauses, drains, cleans, retries and limits a queue."""

    # --- the whole queue ------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Makes workers fetch no more jobs of this queue; active jobs continue."""
        await self._run(manage.pause(self.keys))

    async def resume(self) -> None:
        """Makes workers fetch jobs again."""
        await self._run(manage.resume(self.keys))

    @knows_its_names("an argument of drain")
    async def drain(self, *, delayed: bool = False) -> int:
        """Removes all jobs that wait, and the delayed ones if asked; returns how many.

        Active and finished jobs stay, and so do the next runs of schedulers and jobs that arrive while it works. It
        works in bounded calls: what is left when it is interrupted waits as before.
        """
        calls, removed, cursor, left = Calls(self.keys), 0, b"", list[str]()
        while True:
            command = cleaning.drain(
                self.keys, most=REMOVE_BATCH, delayed=delayed, cursor=cursor, calls=calls
            )
            step = await self._run(command)
            removed += step.removed
            left += step.unremovable
            cursor = step.cursor
            if step.left_delayed:
                logger.warning(
                    "drain of %s may have left delayed jobs: events were trimmed before it read them; call it again, "
                    "or raise events_max_len",
                    self.keys.name,
                )
            if not cursor:
                warn_of_unchangeable("drain", self.keys.name, list(dict.fromkeys(left)))
                return removed

    @knows_its_names("an argument of clean")
    async def clean(
        self, grace: Duration = 0, limit: int = 0, state: str | JobState = JobState.COMPLETED
    ) -> list[str]:
        """Removes jobs of a state that are older than `grace`, at most `limit` (0: all); returns their ids.

        As in BullMQ, a limit is also the number of jobs that are examined, those first that workers fetch first.
        """
        age_ms = to_ms(to_seconds("grace", grace))
        which = _cleanable(state)
        check_count("limit", limit)
        # Without a grace all jobs are meant, also those whose worker's clock is a little ahead of ours.
        before_ms = await self._connection.ensure_open() - (age_ms or -CLOCK_SLACK_MS)
        calls, removed, left, examined = Calls(self.keys), list[str](), list[str](), 0
        while not limit or examined < limit:
            batch = min(REMOVE_BATCH, limit - examined) if limit else REMOVE_BATCH
            kept = examined - len(removed)
            step = await self._run(
                clean(self.keys, which, before_ms=before_ms, limit=batch, skip=kept, calls=calls)
            )
            removed += step.removed
            left += step.unremovable
            examined += step.examined
            if step.examined < batch:
                break
        warn_of_unchangeable("clean", self.keys.name, left)
        return removed

    @knows_its_names("an argument of obliterate")
    async def obliterate(self, *, force: bool = False) -> None:
        """Deletes the queue and all its jobs; raises while jobs are active, unless `force` is set."""
        await self.pause()
        calls = Calls(self.keys)
        while await self._run(manage.obliterate(self.keys, count=REMOVE_BATCH, force=force, calls=calls)):
            pass
        async for keys in self._keys_left():
            await self._run(manage.delete_keys(keys))

    async def _keys_left(self) -> AsyncIterator[list[str]]:
        """What the official script does not know: toril's own keys, and what was stored to follow active jobs."""
        beginnings = (self.keys.toril(""), self.keys.next_job(""))
        cursor = "0"
        while True:
            cursor, found = await self._run(read.scan_keys(self.keys, cursor, beginnings))
            if found:
                yield found
            if cursor == "0":
                return

    async def wake_worker(self) -> None:
        """Makes a waiting worker look for jobs that are due now."""
        await self._run(worker.set_marker(self.keys))

    async def publish_event(
        self, name: str, fields: Mapping[str, object] | None = None, *, max_len: int = 10_000
    ) -> str:
        """Adds an event of your own to the queue's events; `QueueEvents` and Node's listeners receive it.

        Values that are no text become JSON. `max_len` is about how many events stay. Returns the id of the event.
        """
        check_text("name", name)
        if name in KNOWN_EVENTS:
            raise InvalidOption("name", f"{name!r} is an event of the queue itself", "choose another name")
        texts = {
            check_text("fields", key): value if isinstance(value, str) else to_json(value).decode()
            for key, value in (fields or {}).items()
        }
        if "event" in texts:
            raise InvalidOption("fields", 'contains "event", which is the name', "rename the field")
        return await self._run(
            manage.publish_event(self.keys, name, texts, max_len=check_count("max_len", max_len, least=1))
        )

    @knows_its_names("an argument of remove_orphaned_jobs")
    async def remove_orphaned_jobs(self, *, limit: int | None = None) -> list[str]:
        """Removes jobs that are in no list, so that no worker takes them, at most `limit`; returns their ids.

        They are left where keys were deleted by hand or by a faulty client. `toril doctor --repair` puts them back
        instead. All keys of the server are looked through in bounded steps.
        """
        if limit is not None:
            check_count("limit", limit, least=1)
        calls, cursor, removed = Calls(self.keys), "0", list[str]()
        base = self.keys.base
        while True:
            cursor, found = await self._run(read.scan_keys(self.keys, cursor, [base]))
            ids = [one for one in (key.removeprefix(base) for key in found) if _may_be_job(one)]
            for start in range(0, len(ids), LOOKED_AT):
                left = None if limit is None else limit - len(removed)
                part = ids[start : start + LOOKED_AT]
                if left is None or left > 0:
                    command = manage.remove_orphans(self.keys, part, limit=left, calls=calls)
                    gone = await self._run(command)
                    removed += gone
            if cursor == "0" or (limit is not None and len(removed) >= limit):
                return removed

    async def trim_events(self, max_len: int) -> int:
        """Shortens the event stream to about `max_len`; returns how many events were removed."""
        return await self._run(manage.trim_events(self.keys, check_count("max_len", max_len)))

    # --- limits ---------------------------------------------------------------------------------------------

    async def set_global_concurrency(self, limit: int | None) -> None:
        """Sets how many jobs may be active at once over all workers; None removes the limit."""
        if limit is not None:
            check_count("limit", limit, least=1)
        await self._run(manage.set_global_concurrency(self.keys, limit))

    async def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """Sets how many jobs may start in a period over all workers; None removes the limit."""
        if limit is not None and not isinstance(limit, RateLimit):
            raise InvalidOption(
                "limit", f"is a {type(limit).__name__}", "give RateLimit(count, period), or None"
            )
        pair = None if limit is None else (limit.count, to_ms(limit.period))
        await self._run(manage.set_global_rate_limit(self.keys, pair))

    async def rate_limit(self, duration: Duration) -> None:
        """Stops workers with a rate limit, or all if the queue has one, from fetching for this time, as in BullMQ."""
        span_ms = to_ms(to_seconds("duration", duration, positive=True))
        await self._run(manage.start_rate_limit(self.keys, span_ms))

    async def remove_rate_limit_key(self) -> None:
        """Resets the count of the rate limit: workers continue at once."""
        await self._run(manage.remove_rate_limit(self.keys))

    # --- single jobs ----------------------------------------------------------------------------------------

    async def remove(self, job_id: str, *, children: bool = True) -> None:
        """Removes a job and its children; raises `JobLocked` while one of them is being worked on."""
        await self._run(manage.remove(self.keys, check_lookup_id(job_id), children=children))

    async def cancel(self, job_id: str, reason: str = "cancelled") -> Literal["asked", "removed"]:
        """Cancels a job: a waiting job is removed, the worker of an active job is asked to stop it.

        Raises `JobNotFound`, `JobNotInState` when the job has ended already, or `JobLocked` when it waits for a child
        that is being worked on.
        """
        for _ in range(CANCEL_ATTEMPTS):
            found = await self._connection.run_all(
                read.get_state(self.keys, check_lookup_id(job_id)), read.get_lock(self.keys, job_id)
            )
            state, token = JobState.parse(found[0]), found[1]
            if state is JobState.UNKNOWN or state.is_final:
                raise (JobNotFound if state is JobState.UNKNOWN else JobNotInState)(job_id, command="cancel")
            if token is not None:
                await self._run(manage.request_cancel(self.keys, job_id, token, reason, CANCEL_TTL_MS))
                return "asked"
            with contextlib.suppress(JobLocked):  # it was fetched meanwhile, or one of its children is locked
                await self._run(manage.remove(self.keys, job_id))
                return "removed"
        raise JobLocked(job_id, command="cancel", hint="one of its children is: cancel that first")

    async def update_job_progress(self, job_id: str, progress: object) -> None:
        """Sets the progress of a job from outside of its handler."""
        raw = progress_to_json(progress)
        await self._run(manage.update_progress(self.keys, check_lookup_id(job_id), raw, self._calls.calls))

    async def add_job_log(self, job_id: str, line: str, *, keep: int = KEEP_LOGS) -> int:
        """Appends a line to a job's log and keeps the newest `keep`, 0: none; returns how many lines it has now."""
        check_count("keep", keep)
        command = manage.add_log(
            self.keys, check_lookup_id(job_id), log_line(line), keep=keep, calls=self._calls.calls
        )
        return await self._run(command)

    async def remove_deduplication_key(self, deduplication_id: str) -> bool:
        """Lets the next job with this deduplication id be added; returns False when nothing prevented it."""
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
        select among them; `rate` is the limit per second. Jobs that end again meanwhile are not retried.
        """
        if rate is not None and rate <= 0:
            raise InvalidOption("rate", f"is {rate}", "give jobs per second")
        if state not in get_args(FinalState):
            raise InvalidOption("state", f"is {state!r}", f"choose one of {', '.join(get_args(FinalState))}")
        if limit is not None:
            check_count("limit", limit)
        until_ms = None if timestamp is None else datetime_to_ms("timestamp", timestamp)
        # Oldest first, and no more than there are now: a job that fails again comes after them.
        total = await self._run(read.count_ended(self.keys, state, until_ms))
        most = total if limit is None else min(limit, total)
        if name is None and reason is None and where is None:
            return await self._retry_all(state, total, most, until_ms, RetryLimiter(rate))
        return await self._retry_some(state, total, most, RetryLimiter(rate), matcher(name, reason, where))

    async def _retry_all(
        self, state: FinalState, total: int, limit: int, until_ms: int | None, limiter: RetryLimiter
    ) -> int:
        calls, moved, more, left = Calls(self.keys), 0, limit > 0, list[str]()
        while more and moved < limit and moved + len(left) < total:
            batch = limiter.batch(min(BATCH, limit - moved, total - moved - len(left)))
            step = await self._run(
                manage.move_jobs_to_wait(
                    self.keys, state, count=batch, until_ms=until_ms, skip=len(left), calls=calls
                )
            )
            moved, more, left = moved + step.moved, step.more, left + step.unmovable
            await limiter.wait(step.moved, more and moved < limit)
        warn_of_unchangeable("retry", self.keys.name, left)
        return moved

    async def _retry_some(
        self,
        state: FinalState,
        total: int,
        limit: int,
        limiter: RetryLimiter,
        wanted: Callable[[Job[T]], bool],
    ) -> int:
        calls, moved, skipped, left = Calls(self.keys, at_once=JOBS_AT_ONCE), 0, 0, list[str]()
        while moved < limit and moved + skipped < total:
            size = min(limiter.batch(JOBS_AT_ONCE), total - moved - skipped)
            page = read.get_ranges(self.keys, [state], start=skipped, end=skipped + size - 1, ascending=True)
            ids = await self._run(page)
            if not ids:
                break
            chosen = [job for job in await self._jobs(ids) if wanted(job)][: limit - moved]
            retried, failed = await self._reprocess(chosen, state, calls)
            moved += retried
            left += failed
            skipped += len(ids) - retried
            await limiter.wait(retried, retried > 0)
        warn_of_unchangeable("retry", self.keys.name, left)
        return moved

    async def _reprocess(self, jobs: list[Job[T]], state: FinalState, calls: Calls) -> tuple[int, list[str]]:
        """Returns how many of the jobs were sent back, and the ids of those at which the script failed."""
        results = await self._transport.run_many(
            [manage.reprocess(self.keys, job.id, state=state, lifo=is_lifo(job), calls=calls) for job in jobs]
        )
        left = [job.id for job, result in zip(jobs, results, strict=True) if is_data_error(result)]
        # A job that was retried or removed by another client meanwhile does not count.
        raise_first_error(
            [one for one in results if not isinstance(one, ScriptRefused) and not is_data_error(one)]
        )
        return sum(one is None for one in results), left

    @knows_its_names("an argument of promote_jobs")
    async def promote_jobs(self, *, limit: int | None = None) -> int:
        """Makes delayed jobs ready now, all or at most `limit`, those that are due first; returns how many."""
        if limit is not None:
            check_count("limit", limit)
        calls, moved, more, left = Calls(self.keys), 0, True, list[str]()
        while more and (limit is None or moved < limit):
            batch = BATCH if limit is None else min(BATCH, limit - moved)
            step = await self._run(
                manage.move_jobs_to_wait(self.keys, "delayed", count=batch, skip=len(left), calls=calls)
            )
            moved, more, left = moved + step.moved, step.more, left + step.unmovable
        warn_of_unchangeable("promote", self.keys.name, left)
        return moved


def _may_be_job(name: str) -> bool:
    """Whether a key of the queue may be the hash of a job."""
    is_run = name.startswith("repeat:") and name.count(":") == 2
    return name not in RESERVED_IDS and (":" not in name or is_run)


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
