"""Supervise: keep ingest running and the other steps coming, for ever.

Guarantee: a step that fails is tried again, ever more rarely, while the others go on; `stop` ends all within one step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from toril.spark.pipeline._listener import IngestListener
from toril.spark.pipeline._spark_errors import cause_of

_log = logging.getLogger("toril.pipeline")
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_LOOK: Final = 0.1  # seconds between two looks at the clock


class Runs(Protocol):
    """What the supervisor needs of a pipeline."""

    @property
    def spark(self) -> Any: ...

    def start_ingest(self, *, once: bool = False) -> Any: ...


@dataclass(slots=True)
class Step:
    """One thing to do every so often."""

    name: str
    every: float
    act: Callable[[], object]
    due: float = 0.0
    failures: int = 0
    runs: int = 0
    last_seconds: float = 0.0
    error: str | None = None

    def run(self, now: Callable[[], float]) -> None:
        began = now()
        try:
            self.act()
        except Exception as error:  # noqa: BLE001 — whatever it is, the other steps go on
            self.failures += 1
            self.error = f"{type(error).__name__}: {cause_of(error)}"
            pause = min(_FIRST_PAUSE * 2 ** (self.failures - 1), _LONGEST_PAUSE)
            _log.warning("%s failed, next try in %g s: %s", self.name, pause, self.error)
            self.due = now() + max(pause, self.every)
            return
        self.runs, self.failures, self.error = self.runs + 1, 0, None
        self.last_seconds = now() - began
        self.due = began + self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How things go, for whoever watches."""

    batches: int
    restarts: int
    steps: dict[str, dict[str, Any]]
    error: str | None


@dataclass(slots=True)
class Supervisor:
    """Runs a pipeline until it is told to stop."""

    pipeline: Runs
    steps: list[Step]
    stop: threading.Event
    on_progress: Callable[[Progress], object] = lambda _: None
    now: Callable[[], float] = time.monotonic
    _query: Any = None
    _restarts: int = -1
    _start_at: float = 0.0
    _pause: float = _FIRST_PAUSE
    _listener: IngestListener = field(default_factory=lambda: IngestListener("toril_ingest"))

    def run(self) -> None:
        streams = self.pipeline.spark.streams
        streams.addListener(self._listener)
        try:
            while not self.stop.is_set():
                self._keep_ingesting()
                if self._run_due():
                    self.on_progress(self.progress())
                self.stop.wait(_LOOK)
        finally:
            self._end()
            streams.removeListener(self._listener)

    def _keep_ingesting(self) -> None:
        if self._query is not None and self._query.isActive:
            return
        if self._query is not None:
            self._note_end()
        if self.now() < self._start_at:
            return
        try:
            self._query = self.pipeline.start_ingest()
            self._restarts += 1
        except Exception as error:  # noqa: BLE001 — a server that is away now may be back later
            self._back_off(str(error))

    def _note_end(self) -> None:
        error = self._query.exception()
        self._query = None
        self._back_off(str(error) if error else "it ended by itself")

    def _back_off(self, problem: str) -> None:
        recovered = self._listener.heard.batches > 0
        self._pause = _FIRST_PAUSE if recovered else min(self._pause * 2, _LONGEST_PAUSE)
        self._listener.heard.batches = 0
        self._listener.heard.error = cause_of(problem)
        self._start_at = self.now() + self._pause
        _log.warning("ingest ended, next start in %g s: %s", self._pause, self._listener.heard.error)

    def _run_due(self) -> bool:
        due = [step for step in self.steps if step.due <= self.now()]
        for step in due:
            if self.stop.is_set():
                break
            step.run(self.now)
        return bool(due)

    def _end(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def progress(self) -> Progress:
        return Progress(
            batches=self._listener.heard.batches,
            restarts=max(self._restarts, 0),
            steps={
                step.name: {"runs": step.runs, "seconds": round(step.last_seconds, 3), "error": step.error}
                for step in self.steps
            },
            error=self._listener.heard.error,
        )
