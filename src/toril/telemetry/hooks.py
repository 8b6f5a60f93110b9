"""What the core reports while it works: one small protocol, and a collector that does nothing.

Guarantee: a leaf. It imports nothing of toril, costs one empty call where no collector is set, and none of its
methods may block or raise; the core does not guard against a collector that does.

Durations are seconds. `queue` is the queue's name without prefix. Only `set_active_workers` names a worker, so
that the number of time series does not grow with every restart.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

JobStatus: TypeAlias = Literal["completed", "failed", "retried"]
FailureReason: TypeAlias = Literal["permanent", "transient_exhausted", "stalled", "timeout", "cancelled"]


@runtime_checkable
class MetricsCollector(Protocol):
    """Receives figures from queues and workers. Called from event loops and threads: it must be thread-safe."""

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None:
        """An attempt ended: the job completed, failed for good, or will be tried again."""

    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None:
        """A job failed for good, and why."""

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


class NoMetrics:
    """Collects nothing."""

    __slots__ = ()

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None: ...
    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None: ...
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


NO_METRICS: MetricsCollector = NoMetrics()
