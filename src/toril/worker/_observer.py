"""What happens to a worker's jobs is counted, logged and told, in this order and in one place.

Guarantee: an outcome is told once, after the queue has accepted it; one that the queue refused is logged as refused and
never counted as done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from toril.backends.base import FinishedJob
from toril.errors import ScriptRefused, TorilError
from toril.protocol.outcome import Completed, Failed, Requeued, Retry, UnknownName
from toril.telemetry.hooks import NO_METRICS, MetricsCollector
from toril.worker._attempt_runner import Attempt
from toril.worker._events import Callbacks, WorkerEvent
from toril.worker._log import WorkerLog
from toril.worker._unknown_names import UnknownNameLines


class WorkerObserver:
    """Speaks to metrics, log and callbacks for one worker."""

    def __init__(
        self,
        label: str,
        metrics: MetricsCollector,
        log: WorkerLog,
        callbacks: Callbacks,
        after: Callable[[FinishedJob, int], Any],
    ) -> None:
        self._label = label  # how metrics name the queue
        self._metrics = metrics
        self._log = log
        self._callbacks = callbacks
        self._after = after  # the job of an accepted outcome, as it is now; asked only when somebody listens
        self.measured = metrics is not NO_METRICS
        self.is_observed = True  # somebody counts or logs what happens to ordinary jobs
        self._unknown_names = UnknownNameLines()
        self._refused: list[tuple[str, TorilError]] = []  # by the answer that is being told
        self.processed = 0
        self.failed = 0

    def look(self) -> None:
        """Once for each answer of the queue, not for each job: a log may be turned on while we run."""
        try:
            self.is_observed = self.measured or self._log.logs_info
        except Exception:  # noqa: BLE001  # a user's logger that raises must not cost what the answer brought
            self.is_observed = True

    # --- jobs -----------------------------------------------------------------------------------------------

    def started(self, attempt: Attempt, waited: float | None) -> None:
        if waited is not None:
            self._metrics.observe_wait(self._label, max(0.0, waited))
        if self._log.logs_info:
            delivery = attempt.delivery
            payload = getattr(attempt.subject, "data", None) if self._log.payloads else None
            self._log.picked_up(delivery.id, delivery.name, payload)
        self._callbacks.tell("active", attempt.subject)

    def ended(self, attempt: Attempt) -> None:
        """A handler ended; what became of its job is told when the queue has accepted it."""
        self._metrics.observe_job_duration(self._label, attempt.seconds)

    def settled(self, batch: Sequence[FinishedJob], at_ms: int) -> None:
        """The queue has accepted these outcomes at this time; those that it refused were told before."""
        if self._refused:
            self._write_refused()
        unnoticed = not self.is_observed and "completed" not in self._callbacks.listeners
        for settled in batch:
            if unnoticed and type(settled.outcome) is Completed:
                self.processed += 1
            else:
                self._outcome(settled, at_ms)

    def _outcome(self, settled: FinishedJob, at_ms: int) -> None:
        attempt, outcome = settled.memo, settled.outcome
        match outcome:
            case Completed():
                self._completed(attempt)
                self._tell("completed", settled, at_ms, attempt.result)
            case Failed():
                self._failed(attempt, outcome)
                self._tell("failed", settled, at_ms, attempt.error)
            case Retry():
                self._retried(attempt, outcome)
                self._tell("retrying", settled, at_ms, attempt.error, outcome.delay)
            case UnknownName():
                self._unknown_name(attempt, outcome)
            case _:
                how = outcome.reason if isinstance(outcome, Requeued) else type(outcome).__name__
                self._log.returned(attempt.delivery.id, how)

    def _tell(self, event: WorkerEvent, settled: FinishedJob, at_ms: int, *values: Any) -> None:
        if event in self._callbacks.listeners:
            self._callbacks.tell(event, self._after(settled, at_ms), *values)

    def _completed(self, attempt: Attempt) -> None:
        self.processed += 1
        self._metrics.increment_jobs_processed(self._label, "completed")
        if self._log.logs_info:
            self._log.completed(attempt.delivery.id, attempt.seconds, attempt.result)

    def _failed(self, attempt: Attempt, outcome: Failed) -> None:
        self.failed += 1
        self._metrics.increment_jobs_processed(self._label, "failed")
        self._metrics.increment_jobs_failed(self._label, outcome.kind)
        delivery = attempt.delivery
        self._log.failed(delivery.id, delivery.name, outcome, delivery.attempts_made + 1)

    def _retried(self, attempt: Attempt, outcome: Retry) -> None:
        self._metrics.increment_jobs_processed(self._label, "retried")
        delivery = attempt.delivery
        self._log.retried(delivery.id, delivery.name, outcome, attempt.error, delivery.attempts_made + 1)

    def _unknown_name(self, attempt: Attempt, outcome: UnknownName) -> None:
        self._metrics.increment_unknown_names(self._label)
        delivery = attempt.delivery
        line = self._unknown_names.due(delivery.name)
        if line is not None:
            name, count = line
            self._log.unknown_name(delivery.id, name, count, outcome.delay)

    def refused(self, settled: FinishedJob, error: TorilError) -> None:
        """The queue would not have this outcome: the job is another's by now, or is gone."""
        self._refused.append((settled.delivery.id, error))
        if isinstance(error, ScriptRefused) and not settled.delivery.lock_lost:
            self._lost(settled.memo)
        self._callbacks.tell("error", error)

    def _write_refused(self) -> None:
        """One line for each kind of refusal in an answer."""
        refused, self._refused = self._refused, []
        by_kind: dict[type[TorilError], list[tuple[str, TorilError]]] = {}
        for one in refused:
            by_kind.setdefault(type(one[1]), []).append(one)
        for alike in by_kind.values():
            self._log.refused([job_id for job_id, _ in alike], alike[0][1])

    def locks_lost(self, attempts: Sequence[Attempt]) -> None:
        """A heartbeat found that these jobs are no longer ours."""
        if attempts:
            self._metrics.increment_heartbeat_failure(self._label, len(attempts))
            self._log.lock_lost([attempt.delivery.id for attempt in attempts])
        for attempt in attempts:
            self._lost(attempt)

    def _lost(self, attempt: Attempt) -> None:
        """Told once for each attempt, by the heartbeat or by the refusal of its outcome."""
        attempt.delivery.lock_lost = True
        if attempt.subject is not None and hasattr(attempt.subject, "lock_lost"):
            attempt.subject.lock_lost = True
        self._callbacks.tell("lock_lost", attempt.subject)

    # --- services -------------------------------------------------------------------------------------------

    def beat(self, renewed: int, seconds: float) -> None:
        """Locks were renewed. One that was not is told by `lock_lost`, unless its job ended meanwhile."""
        self._metrics.observe_lock_extend(self._label, seconds)
        self._metrics.increment_heartbeat_success(self._label, renewed)

    def heartbeat_failed(self, job_ids: Sequence[str], error: BaseException) -> None:
        self._metrics.increment_heartbeat_failure(self._label, len(job_ids))
        self._log.heartbeat_failed(job_ids, error)

    def stalled(self, job_ids: Sequence[str]) -> None:
        self._metrics.increment_stalled_jobs(self._label, len(job_ids))
        self._log.stalled(job_ids)
        self._callbacks.tell("stalled", job_ids)

    def sweep_skipped(self) -> None:
        self._metrics.increment_stalled_checker_skipped(self._label)
        self._log.sweep_skipped()

    def scheduler_broken(self) -> None:
        """The next job of a scheduler could not be made."""
        self._metrics.increment_scheduler_failures(self._label)

    def trouble(self, error: BaseException) -> None:
        self._log.trouble(error)
        self._callbacks.tell("error", error)
