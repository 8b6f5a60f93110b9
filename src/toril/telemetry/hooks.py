"""The protocols of metrics and traces, and a collector that does nothing.

Guarantee: imports nothing of toril, costs one empty call where no collector is set and one comparison where
no tracer is, and none of its methods may block. A worker logs an error of its collector and goes on.

Durations are seconds. `queue` is the queue's name without prefix, `list:NAME` or `stream:NAME` for the other kinds.
Only `set_active_workers` names a worker, so that the number of time series does not grow with every restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

JobStatus: TypeAlias = Literal["completed", "failed", "retried"]
# Where a job goes whose attempt ended without an end of the job, by the names of Node's counters.
ReturnState: TypeAlias = Literal["retried", "delayed", "waiting", "waiting-children"]
# The operations that add jobs, by the names of Node's spans.
Adding: TypeAlias = Literal["add", "addBulk", "addFlow", "addBulkFlows", "addNode"]
FailureReason: TypeAlias = Literal[
    "permanent", "transient_exhausted", "stalled", "timeout", "cancelled", "expired"
]


@runtime_checkable
class MetricsCollector(Protocol):
    """Receives figures from queues and workers. Called from event loops and threads: it must be thread-safe."""

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None:
        """An attempt ended: the job completed, failed for good, or will be tried again."""

    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None:
        """A job failed for good, and why."""

    def increment_jobs_returned(self, queue: str, state: ReturnState) -> None:
        """An attempt ended and the job goes on: retried at once, delayed, put back, or it waits for its children."""

    def increment_unknown_names(self, queue: str, count: int = 1) -> None:
        """Jobs were put back because the worker has no handler for their name."""

    def increment_jobs_added(self, queue: str, count: int = 1) -> None:
        """Jobs were added by this process."""

    def observe_job_duration(self, queue: str, seconds: float) -> None:
        """How long a handler ran."""

    def observe_wait(self, queue: str, seconds: float) -> None:
        """How long a job was ready before a worker fetched it."""

    def observe_lock_extend(self, queue: str, seconds: float) -> None:
        """How long a renewal of locks took."""

    def set_queue_length(self, queue: str, state: str, length: int) -> None:
        """How many jobs are in one state."""

    def increment_stalled_jobs(self, queue: str, count: int = 1) -> None:
        """Jobs were found without a lock and went back to the queue."""

    def increment_heartbeat_success(self, queue: str, count: int = 1) -> None:
        """Locks were renewed."""

    def increment_heartbeat_failure(self, queue: str, count: int = 1) -> None:
        """Locks could not be renewed."""

    def set_active_workers(self, queue: str, worker_id: str, active: bool) -> None:
        """A worker started or stopped."""

    def set_redis_connection_status(self, connected: bool) -> None:
        """The connection to Redis was made, or lost."""

    def increment_redis_reconnect_attempts(self) -> None:
        """One attempt to reach Redis again."""

    def increment_stalled_checker_skipped(self, queue: str) -> None:
        """A sweep was skipped because the one before it still ran."""

    def increment_scheduler_failures(self, queue: str) -> None:
        """The next job of a scheduler could not be added, for example because its pattern cannot be read."""


class NoMetrics:
    """Collects nothing."""

    __slots__ = ()

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None: ...
    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None: ...
    def increment_jobs_returned(self, queue: str, state: ReturnState) -> None: ...
    def increment_unknown_names(self, queue: str, count: int = 1) -> None: ...
    def increment_jobs_added(self, queue: str, count: int = 1) -> None: ...
    def observe_job_duration(self, queue: str, seconds: float) -> None: ...
    def observe_wait(self, queue: str, seconds: float) -> None: ...
    def observe_lock_extend(self, queue: str, seconds: float) -> None: ...
    def set_queue_length(self, queue: str, state: str, length: int) -> None: ...
    def increment_stalled_jobs(self, queue: str, count: int = 1) -> None: ...
    def increment_heartbeat_success(self, queue: str, count: int = 1) -> None: ...
    def increment_heartbeat_failure(self, queue: str, count: int = 1) -> None: ...
    def set_active_workers(self, queue: str, worker_id: str, active: bool) -> None: ...
    def set_redis_connection_status(self, connected: bool) -> None: ...
    def increment_redis_reconnect_attempts(self) -> None: ...
    def increment_stalled_checker_skipped(self, queue: str) -> None: ...
    def increment_scheduler_failures(self, queue: str) -> None: ...


NO_METRICS: MetricsCollector = NoMetrics()


# --- traces -------------------------------------------------------------------------------------------------


class AddingSpan(Protocol):
    """The span of jobs that are being added."""

    @property
    def carrier(self) -> str | None:
        """The trace context as a JSON string, which is stored with the jobs; None: there is none."""

    def added(self, job_ids: Sequence[str]) -> None:
        """The jobs were added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An attempt, for a tracer."""

    queue: str
    worker_id: str
    job_id: str
    name: str
    attempts_made: int
    carrier: str | None  # the trace context of the job


@runtime_checkable
class Tracer(Protocol):
    """Opens spans around adding and processing. The span of a block that raises records the error."""

    def adding(
        self, queue: str, names: Sequence[str], *, operation: Adding = "add"
    ) -> AbstractContextManager[AddingSpan]:
        """While jobs are being added. Each job of a flow is an "addNode" within the "addFlow" of all."""

    def processing(self, work: Work) -> AbstractContextManager[None]:
        """While a handler runs; inside, the job's span is the current one."""
