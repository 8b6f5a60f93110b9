"""The methods of `Queue` that read.

Guarantee: nothing here changes a job. A list is read at one moment; a job that is removed between the reading of the
list and the reading of the job is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toril.commands import read, server
from toril.commands.read import Metrics
from toril.errors import InvalidOption, MalformedValue, RedisError
from toril.jobs import Job
from toril.jobs.type_variables import T
from toril.producer._base import QueuePart, check_lookup_id
from toril.producer._unchangeable_jobs import NO_HASH
from toril.protocol.keys import client_name
from toril.protocol.record import JobRecord
from toril.protocol.state import COUNTED_STATES, JobCounts, JobState
from toril.protocol.worker_options import RateLimit


@dataclass(frozen=True, slots=True)
class JobLogs:
    """Some lines of a job's log, and the number of all lines."""

    lines: list[str]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMeta:
    """The settings that are stored with a queue."""

    version: str | None  # of the library that made it
    paused: bool
    concurrency: int | None  # over all workers; None: no limit
    rate_limit: RateLimit | None  # over all workers
    max_len_events: int | None  # about how many events are stored
    fields: Mapping[str, str]  # all fields of the hash

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> QueueMeta:
        count, span = _positive(fields.get("max")), _positive(fields.get("duration"))
        return cls(
            version=fields.get("version"),
            paused="paused" in fields,
            concurrency=_positive(fields.get("concurrency")),
            rate_limit=RateLimit(count, span / 1000) if count and span else None,
            max_len_events=_positive(fields.get("opts.maxLenEvents")),
            fields=dict(fields),
        )


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedWorker:
    """A worker, of any client library, as CLIENT LIST shows its connection."""

    worker_id: str | None  # None: the worker did not give a name
    address: str
    age: int  # seconds since it connected
    idle: int  # seconds since its last command
    client: dict[str, str]  # all fields of CLIENT LIST


class Inspection(QueuePart[T]):
    """Reads jobs, counts and figures."""

    async def get_job(self, job_id: str) -> Job[T] | None:
        """Returns a job by its id; None when there is none. Raises `MalformedValue` if its key is no hash."""
        try:
            flat = await self._run(read.get_job(self.keys, check_lookup_id(job_id)))
        except RedisError as error:
            if error.concerns_data:
                raise MalformedValue("its key", NO_HASH, job_id=job_id) from error
            raise
        return Job(JobRecord.from_flat(job_id, flat), self._calls) if flat else None

    async def get_jobs(
        self,
        states: str | JobState | Sequence[str | JobState] | None = None,
        start: int = 0,
        end: int = -1,
        *,
        ascending: bool = False,
    ) -> list[Job[T]]:
        """Returns jobs in these states (default: all), newest first; `start` and `end` count within each state."""
        names = [state.value for state in _states(states)]
        found = await self._run(read.get_ranges(self.keys, names, start=start, end=end, ascending=ascending))
        return await self._jobs(found)

    async def get_waiting(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("waiting", start, end, ascending=True)

    async def get_prioritized(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("prioritized", start, end, ascending=True)

    async def get_active(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("active", start, end, ascending=True)

    async def get_delayed(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("delayed", start, end, ascending=True)

    async def get_waiting_children(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("waiting-children", start, end, ascending=True)

    async def get_completed(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("completed", start, end)

    async def get_failed(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        return await self.get_jobs("failed", start, end)

    async def get_dead_letters(self, start: int = 0, end: int = -1) -> list[Job[T]]:
        """Returns jobs that failed for good: the failed set is this queue's dead-letter queue."""
        return await self.get_failed(start, end)

    async def get_job_state(self, job_id: str) -> JobState:
        """Returns the state of a job; `unknown` when there is none."""
        name = await self._run(read.get_state(self.keys, check_lookup_id(job_id)))
        return JobState.parse(name)

    async def get_job_counts(self) -> JobCounts:
        """Returns how many jobs are in each state, counted at one moment."""
        counts = await self._run(read.get_counts(self.keys))
        return JobCounts.of(counts)

    async def get_job_count_by_types(self, *states: str | JobState) -> int:
        """Returns how many jobs are in these states together (default: all)."""
        counts = await self._run(read.get_counts(self.keys))
        wanted = _states(states or None)
        return sum(counts["wait" if state is JobState.WAITING else state.value] for state in wanted)

    async def get_ranges(
        self,
        states: str | JobState | Sequence[str | JobState],
        start: int = 0,
        end: int = -1,
        *,
        ascending: bool = False,
    ) -> list[str]:
        """Returns the ids of jobs in these states, newest first, without reading the jobs."""
        names = [state.value for state in _states(states)]
        return await self._run(read.get_ranges(self.keys, names, start=start, end=end, ascending=ascending))

    async def get_meta(self) -> QueueMeta:
        """Returns the settings that are stored with the queue."""
        fields = await self._run(read.get_meta(self.keys))
        return QueueMeta.of(fields)

    async def count(self) -> int:
        """Returns how many jobs are not active and not finished."""
        counts = await self.get_job_counts()
        return counts.unfinished - counts.active

    async def get_counts_per_priority(self, priorities: Sequence[int]) -> dict[int, int]:
        """Returns how many jobs wait with each of these priorities; 0 means those without one."""
        return await self._run(read.get_counts_per_priority(self.keys, list(dict.fromkeys(priorities))))

    async def get_job_logs(
        self, job_id: str, start: int = 0, end: int = -1, *, ascending: bool = True
    ) -> JobLogs:
        """Returns lines of a job's log, oldest first; `ascending=False` counts and lists from the newest."""
        first, last = (start, end) if ascending else (-(end + 1), -(start + 1))
        lines, count = await self._connection.run_all(
            *read.get_logs(self.keys, check_lookup_id(job_id), start=first, end=last)
        )
        return JobLogs(lines if ascending else lines[::-1], count)

    async def get_metrics(
        self, kind: Literal["completed", "failed"], start: int = 0, end: int = -1
    ) -> Metrics:
        """Returns how many jobs ended, in all and in each past minute, if the workers collect metrics."""
        if kind not in ("completed", "failed"):
            raise InvalidOption("kind", f"is {kind!r}", "choose one of completed, failed")
        return await self._run(read.get_metrics(self.keys, kind, start=start, end=end))

    async def get_workers(self) -> list[ConnectedWorker]:
        """Returns the workers that are connected now, of toril and of Node."""
        unnamed = client_name(self.keys, "worker")
        clients = await self._run(server.worker_clients(self.keys))
        return [_connected(client, client.get("name", "")[len(unnamed) + 3 :] or None) for client in clients]

    async def is_paused(self) -> bool:
        """Whether the queue is paused for all workers."""
        return await self._run(read.is_paused(self.keys))

    async def is_maxed(self) -> bool:
        """Whether as many jobs are active as the global concurrency allows."""
        return await self._run(read.is_maxed(self.keys))

    async def get_global_concurrency(self) -> int | None:
        """Returns how many jobs may be active at once over all workers; None: no limit."""
        value = (await self._run(read.get_meta(self.keys))).get("concurrency")
        return int(value) if value else None

    async def get_global_rate_limit(self) -> RateLimit | None:
        """Returns how many jobs may start in a period over all workers; None: no limit."""
        meta = await self._run(read.get_meta(self.keys))
        if not meta.get("max") or not meta.get("duration"):
            return None
        return RateLimit(int(meta["max"]), int(meta["duration"]) / 1000)

    async def get_rate_limit_ttl(self, max_jobs: int | None = None) -> float:
        """Returns the seconds until the rate limit allows jobs again; 0 when it does now."""
        return max(0, await self._run(read.get_rate_limit_ttl(self.keys, max_jobs))) / 1000

    async def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """Returns the id of the job that holds a deduplication id now."""
        return await self._run(read.get_deduplication_job_id(self.keys, deduplication_id))

    async def get_version(self) -> str | None:
        """The library that made the queue and its version, as in the meta hash."""
        return (await self._run(read.get_meta(self.keys))).get("version")


def _states(given: str | JobState | Sequence[str | JobState] | None) -> list[JobState]:
    """Returns the states; `waiting` includes the jobs of a paused queue, `wait` does not, as in Node."""
    if given is None:
        return list(COUNTED_STATES)
    names = [given] if isinstance(given, str) else list(given)
    wanted = [JobState.parse(name) for name in names]
    if JobState.WAITING in names:
        wanted.append(JobState.PAUSED)
    return list(dict.fromkeys(wanted))


def _connected(client: dict[str, str], worker_id: str | None) -> ConnectedWorker:
    return ConnectedWorker(
        worker_id=worker_id,
        address=client.get("addr", ""),
        age=int(client.get("age", 0)),
        idle=int(client.get("idle", 0)),
        client=client,
    )
