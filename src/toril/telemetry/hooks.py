"""What the core reports while it works: a protocol for figures, one for traces, and a collector of nothing.

Guarantee: a leaf. It imports nothing of toril, costs one empty call where no collector is set and one comparison where
no tracer is, and none of its methods may block. A worker that is given a collector which raises says so and goes on.

Durations are seconds. `queue` is the queue's name without prefix, `list:NAME` or `stream:NAME` for the other kinds.
Only `set_active_workers` names a worker, so that the number of time series does not grow with every restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

JobStatus: TypeAlias = Literal["completed", "failed", "retried"]
# How jobs are added, by the names of Node's spans.
Adding: TypeAlias = Literal["add", "addBulk", "addFlow", "addBulkFlows", "addNode"]
FailureReason: TypeAlias = Literal["permanent", "transient_exhausted", "stalled", "timeout", "cancelled"]


@runtime_checkable
class MetricsCollector(Protocol):
    """Receives figures from queues and workers. Called from event loops and threads: it must be thread-safe."""

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None:
        """An attempt ended: the job completed, failed for good, or will be tried again."""

    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None:
        """A job failed for good, and why."""

    def increment_unknown_names(self, queue: str, count: int = 1) -> None:
        """Jobs were put back because the worker has no handler for their name."""

    def increment_jobs_added(self, queue: str, count: int = 1) -> None:
        """Jobs were added by this process."""

    def observe_job_duration(self, queue: str, seconds: float) -> None:
        """How long a handler ran."""

    def observe_wait(self, queue: str, seconds: float) -> None:
        """How long a job was ready before a worker took it."""

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
        """The connection to Redis stands, or is lost."""

    def increment_redis_reconnect_attempts(self) -> None:
        """One attempt to reach Redis again."""

    def increment_stalled_checker_skipped(self, queue: str) -> None:
        """A sweep was skipped because the one before it still ran."""

    def increment_scheduler_failures(self, queue: str) -> None:
        """The next job of a scheduler could not be made: its pattern cannot be read, for example."""


class NoMetrics:
    """Collects nothing."""

    __slots__ = ()

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None: ...
    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None: ...
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
    """What a tracer knows of jobs that are being added."""

    @property
    def carrier(self) -> str | None:
        """The trace context as a JSON string, to travel with the jobs; None: there is nothing to hand on."""

    def added(self, job_ids: Sequence[str]) -> None:
        """The jobs are in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An attempt at a job, as a tracer sees it."""

    queue: str
    worker_id: str
    job_id: str
    name: str
    attempts_made: int
    carrier: str | None  # the context that came with the job


@runtime_checkable
class Tracer(Protocol):
    """Opens spans around what the core does. A block that raises has failed, and its span says so."""

    def adding(
        self, queue: str, names: Sequence[str], *, operation: Adding = "add"
    ) -> AbstractContextManager[AddingSpan]:
        """While jobs are being added. Each job of a flow is an "addNode" within the "addFlow" of all."""

    def processing(self, work: Work) -> AbstractContextManager[None]:
        """While a handler runs; inside, the job's span is the current one."""
