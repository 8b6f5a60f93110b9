"""The worker's log lines: the same names and fields wherever they come from.

Guarantee: each line carries `worker_id` and `queue`, and `job_id` where there is a job; payloads and results appear
only if the worker was told `log_payloads=True`; nothing is formatted when the level is off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from toril.contract.errors import TorilError, redact
from toril.contract.worker_options import Logger

DEFAULT_LOGGER = logging.getLogger("toril.worker")


class WorkerLog:
    """Writes structured lines for one worker."""

    def __init__(self, logger: Logger | None, *, worker_id: str, queue: str, payloads: bool) -> None:
        self._logger = logger or DEFAULT_LOGGER
        self._common = {"worker_id": worker_id, "queue": queue}
        self.payloads = payloads

    @property
    def chatty(self) -> bool:
        """Whether lines about ordinary jobs are wanted at all."""
        return self._logger.isEnabledFor(logging.INFO)

    def _write(self, level: int, event: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(level):
            named = {**fields, **self._common}
            words = " ".join(f"{key}={value}" for key, value in named.items())
            _say(self._logger, level, f"{event} {words}", {**named, "event": event})

    # --- jobs -----------------------------------------------------------------------------------------------

    def picked_up(self, job_id: str, name: str, payload: Any) -> None:
        more = {"payload": payload} if self.payloads else {}
        self._write(logging.INFO, "Job picked up", job_id=job_id, job_name=name, **more)

    def completed(self, job_id: str, seconds: float, result: Any) -> None:
        more = {"result": result} if self.payloads else {}
        self._write(logging.INFO, "Job completed", job_id=job_id, duration=round(seconds, 6), **more)

    def failed(self, job_id: str, error: str, category: str, attempts_made: int) -> None:
        self._write(
            logging.ERROR,
            "Job failed",
            job_id=job_id,
            error=redact(error),
            category=category,
            attempts_made=attempts_made,
        )

    def retried(self, job_id: str, error: str, attempts_made: int, delay: float) -> None:
        self._write(
            logging.WARNING,
            "Job retried",
            job_id=job_id,
            error=redact(error),
            attempts_made=attempts_made,
            delay=round(delay, 3),
        )

    def returned(self, job_id: str, how: str) -> None:
        self._write(logging.INFO, "Job returned to the queue", job_id=job_id, reason=how)

    def unknown_name(self, job_id: str, name: str, jobs: int, delay: float) -> None:
        """`jobs` of this name were put back since the last such line; `job_id` is one of them."""
        self._write(
            logging.WARNING,
            "Unknown job name",
            job_name=name,
            job_id=job_id,
            jobs=jobs,
            delay=round(delay, 3),
            remedy="no handler of this worker has the name: the job waits for one that does (unknown_names)",
        )

    def stalled(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self._write(logging.WARNING, "Job stalled", job_id=job_id, lock_expired=True)

    def lock_lost(self, job_id: str) -> None:
        self._write(logging.WARNING, "Lock lost", job_id=job_id)

    def refused(self, job_id: str, error: TorilError) -> None:
        self._write(logging.WARNING, "Outcome refused", job_id=job_id, error=redact(str(error)))

    # --- the worker -----------------------------------------------------------------------------------------

    def heartbeat_failed(self, job_ids: Sequence[str], error: BaseException) -> None:
        for job_id in job_ids:
            self._write(logging.WARNING, "Heartbeat failed", job_id=job_id, error=redact(str(error)))

    def disconnected(self, error: BaseException) -> None:
        self._write(logging.ERROR, "Redis disconnected", error=redact(str(error)))

    def reconnecting(self, attempt: int, delay: float | None) -> None:
        """`delay` until the next attempt; None when this was the last."""
        next_in = None if delay is None else round(delay, 3)
        self._write(logging.WARNING, "Redis reconnect failed", attempt=attempt, next_in=next_in)

    def reconnected(self, attempt: int, seconds: float) -> None:
        self._write(logging.INFO, "Redis reconnected", attempt=attempt, duration=round(seconds, 3))

    def gave_up(self, attempts: int) -> None:
        self._write(logging.ERROR, "Redis stays away: the worker shuts down", attempts=attempts)

    def abandoned(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            recovery = "another worker takes it when its lock has lapsed"
            self._write(logging.WARNING, "Job abandoned", job_id=job_id, recovery=recovery)

    def sweep_skipped(self) -> None:
        self._write(logging.WARNING, "Stalled check skipped", reason="the one before still runs")

    def starting(self, server: str) -> None:
        self._write(logging.INFO, "Worker starting", server=server)

    def state(self, state: str) -> None:
        self._write(logging.INFO, "Worker state", state=state)

    def trouble(self, error: BaseException) -> None:
        self._write(logging.ERROR, "Worker error", error=redact(f"{type(error).__name__}: {error}"))


def _say(logger: Logger, level: int, text: str, fields: dict[str, Any]) -> None:
    """Through adapters, whose own fields join ours: left to themselves, they would put theirs in the place of ours."""
    while isinstance(logger, logging.LoggerAdapter):
        text, given = logger.process(text, {"extra": fields})
        fields = {**(given.get("extra") or {}), **fields}
        logger = logger.logger
    logger.log(level, "%s", text, extra=fields)
