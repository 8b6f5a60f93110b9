"""`Queue` for code without an event loop: the same names, blocking.

Guarantee: no logic of its own: every method is the asyncio one, awaited in the loop thread. Threads may share a
queue; what they add at the same time is sent in one call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Unpack, overload

from toril.commands.read import Metrics
from toril.jobs import BlockingJob, BlockingJobCalls
from toril.jobs import Job as AsyncJob
from toril.jobs.base import FinalState
from toril.jobs.type_variables import T
from toril.producer import ConnectedWorker, JobLogs, QueueMeta
from toril.producer import Queue as AsyncQueue
from toril.producer.job_builder import NO_DATA, Ids
from toril.protocol.codec import PayloadCodec
from toril.protocol.codecs import GivenCodecs
from toril.protocol.cron import CronGeneration
from toril.protocol.duration import Duration
from toril.protocol.group_limits import GroupCounts, GroupLimits
from toril.protocol.json_types import JsonFields, JsonValue
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import JobOptions, JobOptionsDict, NewJob
from toril.protocol.repeat_rules import RepeatStrategy
from toril.protocol.state import JobCounts, JobState
from toril.protocol.worker_options import RateLimit
from toril.sync._facade import Facade
from toril.sync.schedulers import Schedulers
from toril.telemetry.hooks import MetricsCollector, Tracer
from toril.transport import BlockingTransport, ConnectionPolicy

States = str | JobState | Sequence[str | JobState] | None


class Queue(Facade[AsyncQueue[JsonValue]], Generic[T]):
    """A queue by name, blocking.

    with sync.Queue("emails") as queue:
        job = queue.add("send", {"to": "a@b.c"}, attempts=5, delay=2.0)
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        redis: object = ...,
        prefix: str = ...,
        hash_tag: bool | None = ...,
        ids: Ids = ...,
        defaults: JobOptions = ...,
        payload: type[T] | PayloadCodec[T],
        policy: ConnectionPolicy | None = ...,
        events_max_len: int | None = ...,
        skip_meta: bool = ...,
        metrics: MetricsCollector | None = ...,
        tracer: Tracer | None = ...,
        cron_generation: CronGeneration = ...,
        repeat_strategy: RepeatStrategy | None = ...,
        codecs: GivenCodecs = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[JsonValue],
        name: str,
        *,
        redis: object = ...,
        prefix: str = ...,
        hash_tag: bool | None = ...,
        ids: Ids = ...,
        defaults: JobOptions = ...,
        payload: JsonFields | None = ...,
        policy: ConnectionPolicy | None = ...,
        events_max_len: int | None = ...,
        skip_meta: bool = ...,
        metrics: MetricsCollector | None = ...,
        tracer: Tracer | None = ...,
        cron_generation: CronGeneration = ...,
        repeat_strategy: RepeatStrategy | None = ...,
        codecs: GivenCodecs = ...,
    ) -> None: ...
    def __init__(
        self, name: str, *, redis: object = None, policy: ConnectionPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(functools.partial(AsyncQueue[JsonValue], name, policy=policy, **options), redis)
        self._calls = BlockingJobCalls(
            BlockingTransport(self.address, policy=policy),
            self.keys,
            self._inner.payload,
            codecs=self._inner.codecs,
        )

    def __repr__(self) -> str:
        return f"sync.{self._inner!r}"

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def schedulers(self) -> Schedulers:
        """The schedulers of this queue."""
        return Schedulers(self._inner.schedulers, self._call, self._calls)

    @property
    def keys(self) -> QueueKeys:
        return self._inner.keys

    async def _begin(self) -> None:
        await self._inner.open()

    async def _end(self) -> None:
        await self._inner.close()

    def open(self) -> None:
        """Connects and writes the queue's meta hash. Entering does it, and so does the first call."""
        self._call(self._inner.open)

    def close(self) -> None:
        """Closes the connections. May be called twice."""
        super().close()
        self._calls.transport.close()

    def _blocking(self, job: AsyncJob[T]) -> BlockingJob[T]:
        return BlockingJob(job.record, self._calls, added=job.added)

    def _blocking_all(self, jobs: Iterable[AsyncJob[T]]) -> list[BlockingJob[T]]:
        return [self._blocking(job) for job in jobs]

    # --- adding ---------------------------------------------------------------------------------------------

    @knows_its_names("an argument of add")
    def add(self, name: str, data: T = NO_DATA, **options: Unpack[JobOptionsDict]) -> BlockingJob[T]:  # type: ignore[assignment]
        """Adds a job. Options are those of `JobOptions`; what is left out follows the queue's defaults."""
        return self._blocking(self._call(self._inner.add, name, data, **options))

    def add_bulk(self, jobs: Iterable[NewJob | tuple[object, ...]]) -> list[BlockingJob[T]]:
        """Adds many jobs, in order: `NewJob`s or tuples of name, data and options."""
        return self._blocking_all(self._call(self._inner.add_bulk, jobs))

    # --- looking --------------------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> BlockingJob[T] | None:
        """A job by its id; None when there is none."""
        job = self._call(self._inner.get_job, job_id)
        return None if job is None else self._blocking(job)

    def get_jobs(
        self, states: States = None, start: int = 0, end: int = -1, *, ascending: bool = False
    ) -> list[BlockingJob[T]]:
        """Jobs in these states (default: all), newest first; `start` and `end` count within each state."""
        return self._blocking_all(self._call(self._inner.get_jobs, states, start, end, ascending=ascending))

    def get_waiting(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_waiting, start, end))

    def get_prioritized(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_prioritized, start, end))

    def get_active(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_active, start, end))

    def get_delayed(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_delayed, start, end))

    def get_waiting_children(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_waiting_children, start, end))

    def get_completed(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_completed, start, end))

    def get_failed(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        return self._blocking_all(self._call(self._inner.get_failed, start, end))

    def get_dead_letters(self, start: int = 0, end: int = -1) -> list[BlockingJob[T]]:
        """Jobs that failed for good: the failed set is this queue's dead-letter queue."""
        return self._blocking_all(self._call(self._inner.get_dead_letters, start, end))

    def get_job_state(self, job_id: str) -> JobState:
        """Returns the state of a job; `unknown` when there is none."""
        return self._call(self._inner.get_job_state, job_id)

    def get_job_counts(self) -> JobCounts:
        """Returns the number of jobs in each state, of one moment."""
        return self._call(self._inner.get_job_counts)

    def count(self) -> int:
        """Returns the number of jobs that are waiting, delayed or waiting for children."""
        return self._call(self._inner.count)

    def get_counts_per_priority(self, priorities: Sequence[int]) -> dict[int, int]:
        """How many jobs wait with each of these priorities; 0 means those without one."""
        return self._call(self._inner.get_counts_per_priority, priorities)

    def get_job_logs(self, job_id: str, start: int = 0, end: int = -1, *, ascending: bool = True) -> JobLogs:
        """Lines of a job's log, oldest first; `ascending=False` counts and lists from the newest."""
        return self._call(self._inner.get_job_logs, job_id, start, end, ascending=ascending)

    def get_metrics(self, kind: Literal["completed", "failed"], start: int = 0, end: int = -1) -> Metrics:
        """Jobs that ended, in all and for each past minute, if the workers collect that."""
        return self._call(self._inner.get_metrics, kind, start, end)

    def get_workers(self) -> list[ConnectedWorker]:
        """Returns the workers that are connected now, of toril and of Node."""
        return self._call(self._inner.get_workers)

    def is_paused(self) -> bool:
        """Returns whether the queue is paused."""
        return self._call(self._inner.is_paused)

    def is_maxed(self) -> bool:
        """Whether as many jobs are active as the global concurrency allows."""
        return self._call(self._inner.is_maxed)

    def get_global_concurrency(self) -> int | None:
        """How many jobs may be active at once over all workers; None: no limit."""
        return self._call(self._inner.get_global_concurrency)

    def get_global_rate_limit(self) -> RateLimit | None:
        """How many jobs may start in a time over all workers; None: no limit."""
        return self._call(self._inner.get_global_rate_limit)

    def get_rate_limit_ttl(self, max_jobs: int | None = None) -> float:
        """Returns the seconds until the rate limit allows jobs again; 0 when it does now."""
        return self._call(self._inner.get_rate_limit_ttl, max_jobs)

    def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """Returns the job that holds a deduplication id now."""
        return self._call(self._inner.get_deduplication_job_id, deduplication_id)

    def get_version(self) -> str | None:
        """The library that made the queue and its version, as in the meta hash."""
        return self._call(self._inner.get_version)

    # --- changing -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pauses the queue: workers fetch no more jobs, running ones continue."""
        self._call(self._inner.pause)

    def resume(self) -> None:
        """Resumes the queue."""
        self._call(self._inner.resume)

    @knows_its_names("an argument of drain")
    def drain(self, *, delayed: bool = False) -> int:
        """Removes all jobs that wait, and the delayed ones if asked; returns how many."""
        return self._call(self._inner.drain, delayed=delayed)

    @knows_its_names("an argument of clean")
    def clean(
        self, grace: Duration = 0, limit: int = 0, state: str | JobState = JobState.COMPLETED
    ) -> list[str]:
        """Removes jobs of a state that are older than `grace`, at most `limit` (0: all); returns their ids."""
        return self._call(self._inner.clean, grace, limit, state)

    @knows_its_names("an argument of obliterate")
    def obliterate(self, *, force: bool = False) -> None:
        """Removes the queue and all its jobs. Raises while jobs are active, unless forced."""
        self._call(self._inner.obliterate, force=force)

    def wake_worker(self) -> None:
        """Makes a waiting worker look for jobs that are due now."""
        self._call(self._inner.wake_worker)

    def publish_event(
        self, name: str, fields: Mapping[str, object] | None = None, *, max_len: int = 10_000
    ) -> str:
        """Adds an event of your own to the queue's events; returns its id."""
        return self._call(self._inner.publish_event, name, fields, max_len=max_len)

    def remove_orphaned_jobs(self, *, limit: int | None = None) -> list[str]:
        """Removes jobs that are in no list, so that no worker takes them, at most `limit`; returns their ids."""
        return self._call(self._inner.remove_orphaned_jobs, limit=limit)

    def get_job_count_by_types(self, *states: str | JobState) -> int:
        """Returns how many jobs are in these states together (default: all)."""
        return self._call(self._inner.get_job_count_by_types, *states)

    def get_ranges(
        self,
        states: str | JobState | Sequence[str | JobState],
        start: int = 0,
        end: int = -1,
        *,
        ascending: bool = False,
    ) -> list[str]:
        """Returns the ids of jobs in these states, newest first, without reading the jobs."""
        return self._call(self._inner.get_ranges, states, start, end, ascending=ascending)

    def get_meta(self) -> QueueMeta:
        """Returns the settings that are stored with the queue."""
        return self._call(self._inner.get_meta)

    def trim_events(self, max_len: int) -> int:
        """Trims the event stream to about `max_len`; returns how many events were removed."""
        return self._call(self._inner.trim_events, max_len)

    def set_global_concurrency(self, limit: int | None) -> None:
        """How many jobs may be active at once over all workers; None removes the limit."""
        self._call(self._inner.set_global_concurrency, limit)

    def set_group_weight(self, group: str, weight: float | None) -> None:
        """Sets the share of a group, 1/16 to 16; one of weight 2 is served twice as often as others. None means 1."""
        self._call(self._inner.set_group_weight, group, weight)

    def get_group_weights(self) -> dict[str, float]:
        """The weights that were set, by group."""
        return self._call(self._inner.get_group_weights)

    def set_group_limits(self, group: str | None, limits: GroupLimits | None) -> None:
        """Sets the limits of a group, or of every group that has none of its own; None removes them."""
        self._call(self._inner.set_group_limits, group, limits)

    def get_group_limits(self) -> dict[str | None, GroupLimits]:
        """The limits that were set, by group; under None those of every group that has none of its own."""
        return self._call(self._inner.get_group_limits)

    def get_paused_groups(self) -> list[str]:
        """The groups that are paused, in the order of their names."""
        return self._call(self._inner.get_paused_groups)

    def get_group_counts(self) -> dict[str, GroupCounts]:
        """The numbers of jobs of each group that has some, in the order of the names."""
        return self._call(self._inner.get_group_counts)

    def pause_group(self, group: str) -> None:
        """Holds the jobs of a group back; active jobs continue."""
        self._call(self._inner.pause_group, group)

    def resume_group(self, group: str) -> None:
        """Lets the jobs of a paused group run again."""
        self._call(self._inner.resume_group, group)

    def set_global_rate_limit(self, limit: RateLimit | None) -> None:
        """How many jobs may start in a time over all workers; None removes the limit."""
        self._call(self._inner.set_global_rate_limit, limit)

    def rate_limit(self, duration: Duration) -> None:
        """Stops all workers from fetching for this long."""
        self._call(self._inner.rate_limit, duration)

    def remove_rate_limit_key(self) -> None:
        """Removes the rate limit's counter: workers fetch at once."""
        self._call(self._inner.remove_rate_limit_key)

    def remove(self, job_id: str, *, children: bool = True) -> None:
        """Removes a job and its children; raises `JobLocked` while one of them is active."""
        self._call(self._inner.remove, job_id, children=children)

    def cancel(self, job_id: str, reason: str = "cancelled") -> Literal["asked", "removed"]:
        """Cancels a job: a waiting one is removed, a running one is stopped by its worker."""
        return self._call(self._inner.cancel, job_id, reason)

    def update_job_progress(self, job_id: str, progress: JsonValue) -> None:
        """Sets the progress of a job, from outside of its handler."""
        self._call(self._inner.update_job_progress, job_id, progress)

    def add_job_log(self, job_id: str, line: str, *, keep: int = 1000) -> int:
        """Appends a line to a job's log and keeps the newest `keep`, 0: none; returns how many lines it has now."""
        return self._call(self._inner.add_job_log, job_id, line, keep=keep)

    def remove_deduplication_key(self, deduplication_id: str) -> bool:
        """Removes a deduplication key; returns False when there was none."""
        return self._call(self._inner.remove_deduplication_key, deduplication_id)

    @knows_its_names("an argument of retry_jobs")
    def retry_jobs(
        self,
        *,
        state: FinalState = "failed",
        limit: int | None = None,
        timestamp: datetime | None = None,
        name: str | None = None,
        reason: str | re.Pattern[str] | None = None,
        where: Callable[[BlockingJob[T]], bool] | None = None,
        rate: float | None = None,
    ) -> int:
        """Moves finished jobs to wait, oldest first, at most `limit`; returns how many."""
        chosen = None if where is None else (lambda job: where(self._blocking(job)))
        return self._call(
            self._inner.retry_jobs,
            state=state,
            limit=limit,
            timestamp=timestamp,
            name=name,
            reason=reason,
            where=chosen,
            rate=rate,
        )

    @knows_its_names("an argument of promote_jobs")
    def promote_jobs(self, *, limit: int | None = None) -> int:
        """Moves delayed jobs to wait, at most `limit`, the soonest first; returns how many."""
        return self._call(self._inner.promote_jobs, limit=limit)
