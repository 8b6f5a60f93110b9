"""The worker's log lines: each event has one name and the same fields everywhere.

Guarantee: each line carries `worker_id` and `queue`, and `job_id` where there is a job; what happens to many jobs at
once is one line with their number and some of their ids; payloads and results appear only with
`log_payloads=True`; nothing is formatted when the level is off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from toril.errors import TorilError, redact
from toril.protocol.outcome import Failed, Retry, reason_of
from toril.protocol.stack_trace import stack_of
from toril.protocol.worker_options import Logger
from toril.worker._log_lines import fields_text, trace_of, write_record

DEFAULT_LOGGER = logging.getLogger("toril.worker")
# Ids in a line about many jobs.
SOME_IDS = 10
UNKNOWN_KIND = (
    "permanent only because errors of this kind are unknown: "
    "retry_on=(…,) of a task or error_rules of the worker decide for some, "
    "unknown_errors='transient' retries them all"
)


class WorkerLog:
    """Writes structured lines for one worker."""

    def __init__(self, logger: Logger | None, *, worker_id: str, queue: str, payloads: bool) -> None:
        self._logger = logger or DEFAULT_LOGGER
        self._common = {"worker_id": worker_id, "queue": queue}
        self.payloads = payloads

    @property
    def logs_info(self) -> bool:
        """Whether lines about ordinary jobs are written."""
        return self._logger.isEnabledFor(logging.INFO)

    def _write(
        self,
        level: int,
        event: str,
        *,
        raised: tuple[BaseException | None, str] | None = None,
        **fields: object,
    ) -> None:
        """`raised` is an error and its stack trace."""
        if self._logger.isEnabledFor(level):
            named = {**fields, **self._common}
            trace = None if raised is None else trace_of(*raised)
            write_record(
                self._logger, level, f"{event} {fields_text(named)}", {**named, "event": event}, trace
            )

    def _write_many(self, event: str, job_ids: Sequence[str], **fields: Any) -> None:
        """One line about many jobs."""
        if job_ids:
            ids = list(job_ids[:SOME_IDS])
            self._write(logging.WARNING, event, count=len(job_ids), job_id=ids[0], job_ids=ids, **fields)

    # --- jobs -----------------------------------------------------------------------------------------------

    def picked_up(self, job_id: str, name: str, payload: Any) -> None:
        more = {"payload": payload} if self.payloads else {}
        self._write(logging.INFO, "Job picked up", job_id=job_id, job_name=name, **more)

    def completed(self, job_id: str, name: str, seconds: float, result: Any) -> None:
        more = {"result": result} if self.payloads else {}
        self._write(
            logging.INFO,
            "Job completed",
            job_id=job_id,
            job_name=name,
            duration=round(seconds, 6),
            **more,
        )

    def failed(self, job_id: str, name: str, outcome: Failed, attempts_made: int) -> None:
        self._write(
            logging.ERROR,
            "Job failed",
            raised=(outcome.error, outcome.stacktrace),
            job_id=job_id,
            job_name=name,
            error_type=_type_of(outcome.error),
            error=redact(outcome.reason),
            category=outcome.kind,
            attempts_made=attempts_made,
            **({"hint": UNKNOWN_KIND} if outcome.is_unknown else {}),
        )

    def retried(
        self, job_id: str, name: str, outcome: Retry, error: BaseException | None, attempts_made: int
    ) -> None:
        self._write(
            logging.WARNING,
            "Job retried",
            raised=(error, outcome.stacktrace),
            job_id=job_id,
            job_name=name,
            error_type=_type_of(error),
            error=redact(outcome.reason),
            attempts_made=attempts_made,
            delay=round(outcome.delay, 3),
        )

    def returned(self, job_id: str, reason: str) -> None:
        self._write(logging.INFO, "Job returned to the queue", job_id=job_id, reason=reason)

    def unknown_name(self, job_id: str | None, name: str, count: int, delay: float | None) -> None:
        """`count` jobs of this name were put back since the last such line; `job_id` is one of them, if known."""
        hint = "no handler of this worker has the name: the job waits for one that does, see unknown_names"
        fields = {"job_name": name, "job_id": job_id, "count": count, "delay": delay and round(delay, 3)}
        given = {field: value for field, value in fields.items() if value is not None}
        self._write(logging.WARNING, "Unknown job name", raised=None, hint=hint, **given)

    def stalled(self, job_ids: Sequence[str]) -> None:
        self._write_many("Job stalled", job_ids, lock_expired=True)

    def lock_lost(self, job_ids: Sequence[str]) -> None:
        self._write_many("Lock lost", job_ids)

    def refused(self, job_ids: Sequence[str], error: TorilError) -> None:
        """`error` is that of the first."""
        self._write_many("Outcome refused", job_ids, error=redact(str(error)))

    # --- the worker -----------------------------------------------------------------------------------------

    def heartbeat_failed(self, job_ids: Sequence[str], error: BaseException) -> None:
        self._write_many("Heartbeat failed", job_ids, error=redact(reason_of(error)))

    def disconnected(self, error: BaseException) -> None:
        self._write(logging.ERROR, "Redis disconnected", error=redact(str(error)))

    def reconnect_failed(self, attempt: int, delay: float | None) -> None:
        """`delay` is the time until the next attempt; None after the last one."""
        next_in = None if delay is None else round(delay, 3)
        self._write(logging.WARNING, "Redis reconnect failed", attempt=attempt, next_in=next_in)

    def reconnected(self, attempt: int, seconds: float) -> None:
        self._write(logging.INFO, "Redis reconnected", attempt=attempt, duration=round(seconds, 3))

    def gave_up(self, attempts: int) -> None:
        self._write(logging.ERROR, "Redis cannot be reached: the worker shuts down", attempts=attempts)

    def abandoned(self, job_ids: Sequence[str]) -> None:
        self._write_many(
            "Job abandoned", job_ids, recovery="another worker takes it when its lock has expired"
        )

    def sweep_skipped(self) -> None:
        self._write(logging.WARNING, "Stalled check skipped", reason="the one before still runs")

    def starting(self, server: str) -> None:
        self._write(logging.INFO, "Worker starting", server=server)

    def state(self, state: str) -> None:
        self._write(logging.INFO, "Worker state", state=state)

    def error(self, error: BaseException) -> None:
        kind = type(error).__name__
        # An error of toril's own classes needs no stack trace; one in a callback, a collector or toril does.
        raised = None if isinstance(error, TorilError) else (error, stack_of(error))
        message = redact(f"{kind}: {reason_of(error)}")
        self._write(logging.ERROR, "Worker error", raised=raised, error_type=kind, error=message)


def _type_of(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__
