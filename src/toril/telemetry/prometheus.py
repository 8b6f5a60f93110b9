"""The hooks as Prometheus metrics.

    from toril.telemetry.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics()                 # the default registry, or registry=…
    Worker("emails", handle, metrics=metrics)

Guarantee: the names and labels below are stable. Only `bullmq_active_workers` names a worker, so that the number of
time series does not grow with every restart; the series of a worker is removed when it stops.
"""

from __future__ import annotations

from typing import Final

from toril.protocol.extras import needed
from toril.telemetry.hooks import FailureReason, JobStatus, ReturnState

with needed("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["BUCKETS", "CONTENT_TYPE", "PrometheusMetrics"]

# From a cache hit to a nightly report; many handlers run longer than 10 s.
BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0),
    *(3600.0, 7200.0, 14400.0),
)
# Renewing locks is one call to the server: beyond a few seconds it has failed.
CALL_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMetrics:
    """A `MetricsCollector` for one process; workers and queues of the process may share it."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self._processed = Counter(
            "bullmq_jobs_processed_total",
            "Attempts that ended, by what became of the job.",
            ["queue", "status"],
            registry=registry,
        )
        self._failed = Counter(
            "bullmq_jobs_failed_total",
            "Jobs that failed for good, by why.",
            ["queue", "reason"],
            registry=registry,
        )
        self._returned = Counter(
            "bullmq_jobs_returned_total",
            "Attempts after which the job goes on, by where it went.",
            ["queue", "state"],
            registry=registry,
        )
        self._unknown = Counter(
            "bullmq_jobs_unknown_name_total",
            "Jobs put back because the worker has no handler for their name.",
            ["queue"],
            registry=registry,
        )
        self._added = Counter("bullmq_jobs_added_total", "Jobs added.", ["queue"], registry=registry)
        self._duration = Histogram(
            "bullmq_job_duration_seconds",
            "How long handlers ran.",
            ["queue"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._wait = Histogram(
            "bullmq_job_wait_seconds",
            "How long jobs were ready before their first attempt.",
            ["queue"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._length = Gauge(
            "bullmq_queue_length", "Jobs in one state.", ["queue", "state"], registry=registry
        )
        self._watch_workers(registry)
        self._watch_redis(registry)

    def _watch_workers(self, registry: CollectorRegistry) -> None:
        self._stalled = Counter(
            "bullmq_stalled_jobs_total", "Jobs of dead workers put back.", ["queue"], registry=registry
        )
        self._skipped = Counter(
            "bullmq_stalled_checker_skipped_total",
            "Sweeps skipped because the one before still ran.",
            ["queue"],
            registry=registry,
        )
        self._broken = Counter(
            "bullmq_scheduler_failures_total",
            "Next jobs of schedulers that could not be made.",
            ["queue"],
            registry=registry,
        )
        self._beats = Counter(
            "bullmq_heartbeat_success_total", "Locks renewed.", ["queue"], registry=registry
        )
        self._missed = Counter(
            "bullmq_heartbeat_failure_total", "Locks that could not be renewed.", ["queue"], registry=registry
        )
        self._extend = Histogram(
            "bullmq_lock_extend_duration_seconds",
            "How long a renewal of locks took.",
            ["queue"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._workers = Gauge(
            "bullmq_active_workers", "1 for each worker that runs.", ["queue", "worker_id"], registry=registry
        )

    def _watch_redis(self, registry: CollectorRegistry) -> None:
        self._connection = Gauge(
            "bullmq_redis_connection_status", "1 for the status that holds.", ["status"], registry=registry
        )
        self._reconnects = Counter(
            "bullmq_redis_reconnect_attempts_total", "Attempts to reach Redis again.", registry=registry
        )

    def render(self) -> bytes:
        """Returns everything in the registry, as `/metrics` shows it."""
        return generate_latest(self.registry)

    # --- the hooks ------------------------------------------------------------------------------------------

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None:
        self._processed.labels(queue, status).inc(count)

    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None:
        self._failed.labels(queue, reason).inc()

    def increment_jobs_returned(self, queue: str, state: ReturnState) -> None:
        self._returned.labels(queue, state).inc()

    def increment_unknown_names(self, queue: str, count: int = 1) -> None:
        self._unknown.labels(queue).inc(count)

    def increment_jobs_added(self, queue: str, count: int = 1) -> None:
        self._added.labels(queue).inc(count)

    def observe_job_duration(self, queue: str, seconds: float) -> None:
        self._duration.labels(queue).observe(seconds)

    def observe_wait(self, queue: str, seconds: float) -> None:
        self._wait.labels(queue).observe(seconds)

    def observe_lock_extend(self, queue: str, seconds: float) -> None:
        self._extend.labels(queue).observe(seconds)

    def set_queue_length(self, queue: str, state: str, length: int) -> None:
        self._length.labels(queue, state).set(length)

    def increment_stalled_jobs(self, queue: str, count: int = 1) -> None:
        self._stalled.labels(queue).inc(count)

    def increment_heartbeat_success(self, queue: str, count: int = 1) -> None:
        self._beats.labels(queue).inc(count)

    def increment_heartbeat_failure(self, queue: str, count: int = 1) -> None:
        self._missed.labels(queue).inc(count)

    def set_active_workers(self, queue: str, worker_id: str, active: bool) -> None:
        if active:
            self._workers.labels(queue, worker_id).set(1)
            # Created at the start, so that a rate over them is 0 and not absent.
            for counter in (
                self._stalled,
                self._skipped,
                self._broken,
                self._beats,
                self._missed,
                self._unknown,
            ):
                counter.labels(queue)
            for status in ("completed", "failed", "retried"):
                self._processed.labels(queue, status)
            return
        try:
            self._workers.remove(queue, worker_id)
        except KeyError:
            return  # it never started

    def set_redis_connection_status(self, connected: bool) -> None:
        self._connection.labels("connected").set(1 if connected else 0)
        self._connection.labels("disconnected").set(0 if connected else 1)

    def increment_redis_reconnect_attempts(self) -> None:
        self._reconnects.inc()

    def increment_stalled_checker_skipped(self, queue: str) -> None:
        self._skipped.labels(queue).inc()

    def increment_scheduler_failures(self, queue: str) -> None:
        self._broken.labels(queue).inc()
