"""The state of a worker, as its parts read and change it."""

from __future__ import annotations

import asyncio
import enum
from typing import Protocol

from toril.errors import TorilError


class WorkerState(enum.Enum):
    """The states of a worker."""

    STOPPED = "stopped"
    RUNNING = "running"
    DISCONNECTED = "disconnected"
    SHUTTING_DOWN = "shutting down"


class StateObserver(Protocol):
    """Is notified of changes of the state."""

    def state_changed(self, state: str) -> None: ...


class Stoppable(Protocol):
    """Stops the worker without waiting for it."""

    def begin_stop(self) -> None: ...


class WorkerStatus:
    """The state of one worker."""

    def __init__(self, observer: StateObserver, worker: Stoppable) -> None:
        self._observer = observer
        self._worker = worker
        self.state = WorkerState.STOPPED
        self.failure: TorilError | None = None  # why the worker stopped by itself
        self.guard: asyncio.Task[None] | None = None  # is cancelled only when the event loop ends

    def set(self, state: WorkerState) -> None:
        if state is not self.state:
            self.state = state
            self._observer.state_changed(state.value)

    def fail(self, error: TorilError) -> None:
        """Stops the worker: Redis stayed unavailable for longer than allowed."""
        self.failure = error
        self._worker.begin_stop()

    @property
    def is_loop_ending(self) -> bool:
        """Whether the event loop ends while the worker runs: then all tasks were cancelled."""
        return self.guard is not None and self.guard.cancelling() > 0
