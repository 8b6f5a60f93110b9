"""Updates metrics, writes the log, calls callbacks and opens traces for one worker, in this order and in one place.

Guarantee: an outcome is reported once, after the queue has accepted it; one that the queue refused is logged as refused
and never counted as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, cast

from toril.backends.base import D
from toril.errors import ScriptRefused, TorilError
from toril.protocol.outcome import (
    Completed,
    Failed,
    Postponed,
    RateLimited,
    Requeued,
    Retry,
    UnknownName,
    WaitingForChildren,
)
from toril.protocol.worker_options import WorkerOptions
from toril.telemetry.hooks import NO_METRICS, ReturnState, Tracer, Work
from toril.worker._attempt import Attempt, FinishedAttempt
from toril.worker._events import Callbacks, WorkerEvent
from toril.worker._job_adapter import JobAdapter
from toril.worker._log import WorkerLog
from toril.worker._safe_metrics import safe_metrics
from toril.worker._unknown_names import UnknownNameLines


class WorkerObserver(Generic[D]):
    """Is notified of everything that happens in a worker."""

    def __init__(
        self, queue: str, label: str, worker_id: str, options: WorkerOptions, adapter: JobAdapter[D]
    ) -> None:
        self._queue = queue
        self._label = label  # the queue's name in metrics
        self._worker_id = worker_id
        self._adapter = adapter
        self._log = WorkerLog(options.logger, worker_id=worker_id, queue=label, payloads=options.log_payloads)
        self._metrics = safe_metrics(options.metrics, self._log)
        self._tracer = options.tracer
        self.has_tracer = options.tracer is not None
        self.callbacks = Callbacks(self._log)
        self._has_metrics = self._metrics is not NO_METRICS
        self._observes_jobs = True  # whether ordinary jobs are measured or logged
        self._unknown_names = UnknownNameLines()
        self._refused: list[tuple[str, TorilError]] = []  # by the reply that is being processed
        self.processed = 0
        self.failed = 0

    # --- attempts -------------------------------------------------------------------------------------------

    def trace(self, delivery: D) -> AbstractContextManager[object]:
        """The span of an attempt, of a worker that has a tracer."""
        return cast("Tracer", self._tracer).processing(
            Work(
                queue=self._queue,
                worker_id=self._worker_id,
                job_id=delivery.id,
                name=delivery.name,
                attempts_made=delivery.attempts_made,
                carrier=self._adapter.trace_carrier(delivery),
            )
        )

    def attempt_started(self, attempt: Attempt[D]) -> None:
        if not self._observes_jobs and "active" not in self.callbacks.listeners:
            return
        delivery = attempt.delivery
        if self._has_metrics and (waited := self._adapter.seconds_waited(delivery)) is not None:
            self._metrics.observe_wait(self._label, max(0.0, waited))
        if self._log.logs_info:
            payload = self._adapter.payload_of(attempt.job) if self._log.payloads else None
            self._log.picked_up(delivery.id, delivery.name, payload)
        self.callbacks.emit("active", attempt.job)

    def progressed(self, job: object, progress: object) -> None:
        """A handler has reported progress."""
        self.callbacks.emit("progress", job, progress)

    def attempt_ended(self, attempt: Attempt[D]) -> None:
        """A handler ended; its outcome is reported when the queue has accepted it."""
        if self._has_metrics:
            self._metrics.observe_job_duration(self._label, attempt.seconds)

    def settled(self, batch: Sequence[FinishedAttempt[D]], at_ms: int) -> None:
        """The queue has accepted these outcomes at this time; `refused` was called for the others before."""
        if self._refused:
            self._log_refused()
        counts_only = not self._observes_jobs and "completed" not in self.callbacks.listeners
        for finished in batch:
            if counts_only and type(finished.outcome) is Completed:
                self.processed += 1
            else:
                self._outcome(finished, at_ms)

    def _outcome(self, finished: FinishedAttempt[D], at_ms: int) -> None:
        attempt, outcome = finished.attempt, finished.outcome
        match outcome:
            case Completed():
                self._completed(attempt)
                self._emit("completed", finished, at_ms, attempt.result)
            case Failed():
                self._failed(attempt, outcome)
                self._emit("failed", finished, at_ms, attempt.error)
            case Retry():
                self._retried(attempt, outcome)
                self._emit("retrying", finished, at_ms, attempt.error, outcome.delay)
            case UnknownName():
                self._unknown_name(attempt, outcome)
            case _:
                self._metrics.increment_jobs_returned(self._label, _state_after(outcome))
                reason = outcome.reason if isinstance(outcome, Requeued) else type(outcome).__name__
                self._log.returned(attempt.delivery.id, reason)

    def _emit(self, event: WorkerEvent, finished: FinishedAttempt[D], at_ms: int, *values: object) -> None:
        if event in self.callbacks.listeners:
            job = self._adapter.settled_job(finished, finished.attempt.job, at_ms)
            self.callbacks.emit(event, job, *values)

    def _completed(self, attempt: Attempt[D]) -> None:
        self.processed += 1
        self._metrics.increment_jobs_processed(self._label, "completed")
        if self._log.logs_info:
            delivery = attempt.delivery
            self._log.completed(delivery.id, delivery.name, attempt.seconds, attempt.result)

    def _failed(self, attempt: Attempt[D], outcome: Failed) -> None:
        self.failed += 1
        self._metrics.increment_jobs_processed(self._label, "failed")
        self._metrics.increment_jobs_failed(self._label, outcome.kind)
        delivery = attempt.delivery
        self._log.failed(delivery.id, delivery.name, outcome, delivery.attempts_made + 1)

    def _retried(self, attempt: Attempt[D], outcome: Retry) -> None:
        self._metrics.increment_jobs_processed(self._label, "retried")
        self._metrics.increment_jobs_returned(self._label, "delayed" if outcome.delay > 0 else "retried")
        delivery = attempt.delivery
        self._log.retried(delivery.id, delivery.name, outcome, attempt.error, delivery.attempts_made + 1)

    def _unknown_name(self, attempt: Attempt[D], outcome: UnknownName) -> None:
        self.names_refused(attempt.delivery.name, 1, attempt.delivery.id, outcome.delay)

    def names_refused(
        self, name: str, count: int, job_id: str | None = None, delay: float | None = None
    ) -> None:
        """Jobs were returned because there is no handler for their name; id and delay are known of single ones."""
        self._metrics.increment_unknown_names(self._label, count)
        line = self._unknown_names.due(name, count)
        if line is not None:
            self._log.unknown_name(job_id, *line, delay)

    def refused(self, finished: FinishedAttempt[D], error: TorilError) -> None:
        """The queue refused this outcome: another worker has the job by now, or it was removed."""
        self._refused.append((finished.delivery.id, error))
        if isinstance(error, ScriptRefused) and not finished.delivery.lock_lost:
            self._lock_lost(finished.attempt)
        self.callbacks.emit("error", error)

    def _log_refused(self) -> None:
        """One line for each kind of refusal in a reply."""
        refused, self._refused = self._refused, []
        by_kind: dict[type[TorilError], list[tuple[str, TorilError]]] = {}
        for one in refused:
            by_kind.setdefault(type(one[1]), []).append(one)
        for same_kind in by_kind.values():
            self._log.refused([job_id for job_id, _ in same_kind], same_kind[0][1])

    def locks_lost(self, attempts: Sequence[Attempt[D]]) -> None:
        """A heartbeat could not renew the locks of these running jobs."""
        if attempts:
            self._metrics.increment_heartbeat_failure(self._label, len(attempts))
            job_ids = [attempt.delivery.id for attempt in attempts]
            self._log.lock_lost(job_ids)
            self.callbacks.emit("lock_renewal_failed", job_ids)
        for attempt in attempts:
            self._lock_lost(attempt)

    def _lock_lost(self, attempt: Attempt[D]) -> None:
        """Once for each attempt, after a heartbeat or the refusal of its outcome."""
        attempt.delivery.lock_lost = True
        if attempt.job is not None:
            self._adapter.set_lock_lost(attempt.job)
        self.callbacks.emit("lock_lost", attempt.job)

    # --- services -------------------------------------------------------------------------------------------

    def replied(self) -> None:
        """Once for each reply of the queue, not for each job: a log level may change while the worker runs."""
        try:
            self._observes_jobs = self._has_metrics or self._log.logs_info
        except Exception:  # noqa: BLE001  # a user's logger that raises must not lose the fetched jobs
            self._observes_jobs = True

    def drained(self) -> None:
        self.callbacks.emit("drained")

    def locks_renewed(self, count: int, seconds: float) -> None:
        """A lock that could not be renewed is reported by `locks_lost`, unless its job ended meanwhile."""
        self._metrics.observe_lock_extend(self._label, seconds)
        self._metrics.increment_heartbeat_success(self._label, count)

    def heartbeat_failed(self, job_ids: Sequence[str], error: BaseException) -> None:
        self._metrics.increment_heartbeat_failure(self._label, len(job_ids))
        self._log.heartbeat_failed(job_ids, error)

    def stalled(self, job_ids: Sequence[str]) -> None:
        self._metrics.increment_stalled_jobs(self._label, len(job_ids))
        self._log.stalled(job_ids)
        self.callbacks.emit("stalled", job_ids)

    def sweep_skipped(self) -> None:
        self._metrics.increment_stalled_checker_skipped(self._label)
        self._log.sweep_skipped()

    def scheduler_broken(self) -> None:
        self._metrics.increment_scheduler_failures(self._label)

    def error(self, error: BaseException) -> None:
        """An error of the worker itself."""
        self._log.error(error)
        self.callbacks.emit("error", error)

    # --- connection -----------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._metrics.set_redis_connection_status(True)

    def not_connected(self) -> None:
        self._metrics.set_redis_connection_status(False)

    def disconnected(self, error: TorilError) -> None:
        self.callbacks.emit("disconnected", error)

    def outage_began(self, error: BaseException) -> None:
        self._log.disconnected(error)

    def reconnect_attempt(self) -> None:
        self._metrics.increment_redis_reconnect_attempts()

    def reconnect_failed(self, attempt: int, delay: float | None) -> None:
        """`delay` is the time until the next attempt; None after the last one."""
        self._log.reconnect_failed(attempt, delay)

    def outage_ended(self, attempts: int, seconds: float) -> None:
        self._log.reconnected(attempts, seconds)

    def reconnected(self, seconds: float) -> None:
        self.callbacks.emit("reconnected", seconds)

    def gave_up(self, attempts: int) -> None:
        self._log.gave_up(attempts)

    # --- start and stop -------------------------------------------------------------------------------------

    def starting(self, server: str) -> None:
        self._log.starting(server)

    def state_changed(self, state: str) -> None:
        self._log.state(state)

    def started(self) -> None:
        self._metrics.set_active_workers(self._label, self._worker_id, True)
        self.callbacks.emit("ready")

    def stopped(self) -> None:
        self._metrics.set_active_workers(self._label, self._worker_id, False)

    def jobs_late(self, count: int) -> None:
        self._log.error(TimeoutError(f"{count} jobs did not finish in time"))

    def jobs_abandoned(self, job_ids: Sequence[str]) -> None:
        self._log.abandoned(job_ids)


def _state_after(outcome: Postponed | RateLimited | WaitingForChildren | Requeued) -> ReturnState:
    match outcome:
        case Postponed():
            return "delayed"
        case WaitingForChildren():
            return "waiting-children"
        case _:
            return "waiting"
