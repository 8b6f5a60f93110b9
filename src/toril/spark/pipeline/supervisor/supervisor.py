"""The supervisor: keeps ingest running and runs the other steps at their intervals, until it is stopped.

Guarantee: ingest runs on a thread of its own and is started again within seconds, whatever the steps do. A step that
fails is retried with growing delays, while the others continue. Spark's Java process is restarted when it ended, and
the reason is reported. `stop` ends all within one step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from toril.spark.pipeline.supervisor.spark_errors import cause_of

_log = logging.getLogger("toril.pipeline")
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
# BullMQ keeps a few seconds of events of a busy queue: ingest may not wait longer than it takes to lose them.
_LONGEST_PAUSE_OF_INGEST: Final = 5.0
_POLL_SECONDS: Final = 0.1  # seconds between two looks at the clock
_CHECKS_AFTER_A_FAILURE: Final = 5
_END: Final = 30.0  # seconds that ingest gets to end


class Ingest(Protocol):
    """Copies events from Redis to bronze."""

    @property
    def batches(self) -> int: ...

    def run(self, stop: threading.Event, on_sign: Callable[[], object]) -> None: ...

    def close(self) -> None: ...


class SupervisedPipeline(Protocol):
    """What the supervisor needs of a pipeline."""

    def new_ingest(self) -> Ingest: ...

    def drop_dead_spark(self) -> str | None: ...


@dataclass(slots=True)
class Step:
    """One step and its interval."""

    name: str
    every: float
    act: Callable[[], object]
    due: float = 0.0
    failures: int = 0
    runs: int = 0
    last_seconds: float = 0.0
    error: str | None = None

    def run(self, now: Callable[[], float], why_cut_off: Callable[[], str | None]) -> None:
        """Runs the step once. A step that was interrupted by the end of Spark is due again at once."""
        began = now()
        try:
            self.act()
        except Exception as error:  # whatever it is, the other steps go on
            if reason := why_cut_off():
                self.error, self.due = f"cut off: {reason}", now()
            else:
                self._fail(error, now)
            return
        self.runs, self.failures, self.error = self.runs + 1, 0, None
        self.last_seconds = now() - began
        self.due = began + self.every

    def _fail(self, error: Exception, now: Callable[[], float]) -> None:
        self.failures += 1
        self.error = f"{type(error).__name__}: {cause_of(error)}"
        pause = min(_FIRST_PAUSE * 2 ** (self.failures - 1), _LONGEST_PAUSE)
        _log.warning("%s failed, next try in %g s: %s", self.name, pause, self.error)
        self.due = now() + max(pause, self.every)


class SparkWatch:
    """Notes when Spark's Java process ends; the next use starts another."""

    def __init__(self, pipeline: SupervisedPipeline) -> None:
        self._pipeline = pipeline
        self.ends: list[str] = []  # the reasons

    def check(self) -> None:
        """Reports why Spark ended, if it did."""
        reason = self._pipeline.drop_dead_spark()
        if reason:
            self.ends.append(reason)
            _log.warning("%s; another is started, and ingest goes on meanwhile", reason)


class IngestService:
    """Keeps ingest running on a thread of its own."""

    def __init__(self, ingest: Ingest, spark: SparkWatch) -> None:
        self.ingest = ingest
        self.starts = 0
        self.error: str | None = None
        self._spark = spark
        self._pause = _FIRST_PAUSE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toril-ingest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=_END)
        self.ingest.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.starts += 1
            try:
                self.ingest.run(self._stop, self._note_sign)
            except Exception as error:  # a server that is away now may be back later
                self._note_failure(error)
                self._spark.check()
                self._stop.wait(self._pause)

    def _note_sign(self) -> None:
        self.error, self._pause = None, _FIRST_PAUSE

    def _note_failure(self, error: Exception) -> None:
        had_worked = self.error is None
        self.error = cause_of(error)
        self._pause = _FIRST_PAUSE if had_worked else min(self._pause * 2, _LONGEST_PAUSE_OF_INGEST)
        _log.warning("ingest ended, next start in %g s: %s", self._pause, self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a supervisor, for output."""

    batches: int
    restarts: int
    steps: dict[str, dict[str, Any]]
    error: str | None


@dataclass(slots=True)
class Supervisor:
    """Runs a pipeline until it is stopped."""

    pipeline: SupervisedPipeline
    steps: list[Step]
    stop: threading.Event
    on_progress: Callable[[Progress], object] = lambda _: None
    now: Callable[[], float] = time.monotonic
    _ingest: IngestService = field(init=False)
    _spark: SparkWatch = field(init=False)

    def __post_init__(self) -> None:
        self._spark = SparkWatch(self.pipeline)
        self._ingest = IngestService(self.pipeline.new_ingest(), self._spark)

    def run(self) -> None:
        self._ingest.start()
        try:
            while not self.stop.is_set():
                self._spark.check()
                if self._run_due():
                    self.on_progress(self.progress())
                self.stop.wait(_POLL_SECONDS)
        finally:
            self._ingest.stop()

    def _run_due(self) -> bool:
        due = [step for step in self.steps if step.due <= self.now()]
        for step in due:
            if self.stop.is_set():
                break
            step.run(self.now, partial(self._reason_of_end_since, len(self._spark.ends)))
        return bool(due)

    def _reason_of_end_since(self, ends: int) -> str | None:
        """Why Spark ended during a step; a process that is killed takes a moment to end."""
        for _ in range(_CHECKS_AFTER_A_FAILURE):
            self._spark.check()
            if len(self._spark.ends) > ends:
                return self._spark.ends[-1]
            self.stop.wait(_POLL_SECONDS)
        return None

    def progress(self) -> Progress:
        return Progress(
            batches=self._ingest.ingest.batches,
            restarts=max(self._ingest.starts - 1, 0),
            steps={
                step.name: {"runs": step.runs, "seconds": round(step.last_seconds, 3), "error": step.error}
                for step in self.steps
            },
            error=self._ingest.error,
        )
