"""One attempt at a job, and its outcome."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Generic

from toril.backends.base import D, FinishedJob
from toril.errors import TorilError
from toril.worker._executors import Executor


class Attempt(Generic[D]):
    """One attempt at a job: its task, its result or error, and why it was stopped, if it was."""

    __slots__ = (
        "delivery",
        "ended",
        "error",
        "executor",
        "given_up",
        "job",
        "reason",
        "refusal",
        "result",
        "started",
        "task",
        "timer",
    )

    def __init__(self, delivery: D) -> None:
        self.delivery = delivery
        self.executor: Executor | None = None  # None: there is no handler for the job's name
        self.job: object = None  # the job object that the handler gets
        self.task: asyncio.Task[object] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.reason: TorilError | None = None  # why it was stopped
        self.given_up = False  # settled without its handler, which did not end
        self.result: object = None
        self.error: BaseException | None = None
        self.refusal: TorilError | None = None  # why the queue did not accept the outcome
        self.started = time.monotonic()
        self.ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long the handler ran, or has been running."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started


@dataclass(slots=True)
class FinishedAttempt(FinishedJob[D]):
    """A finished job, and the attempt that finished it."""

    attempt: Attempt[D]
