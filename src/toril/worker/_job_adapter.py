"""What a kind of queue must say to a worker: where jobs come from, what a handler gets, how a result is written.

Guarantee: nothing here is optional by accident: what has a sensible answer for every kind has it here.
"""

from __future__ import annotations

from typing import Any

from toril.backends.base import FinishedJob, Source
from toril.errors import InvalidOption
from toril.protocol.backoff import Backoff
from toril.worker._executors import Executor, Handler
from toril.worker._results import Encode, drop_result


class JobAdapter:
    """The questions; each kind of worker answers them."""

    kind = "bullmq"

    def _make_source(self) -> Source:
        raise NotImplementedError

    def _make_job(self, delivery: Any, blocking: bool) -> Any:
        """The object that a handler gets."""
        raise NotImplementedError

    def _job_for_callbacks(self, delivery: Any) -> Any:  # noqa: ARG002
        """The job object for callbacks when no handler got one: the job was refused before."""
        return None

    def _after(self, settled: FinishedJob, at_ms: int) -> Any:  # noqa: ARG002
        """The job object for callbacks when the queue has accepted an outcome: with what that changed in the job."""
        return settled.memo.subject

    def _make_process_executor(self, handler: Handler) -> Executor:  # noqa: ARG002
        raise InvalidOption("executor", "'process' is not offered by this kind of worker", "use 'thread'")

    def _backoff_of(self, delivery: Any) -> Backoff | None:  # noqa: ARG002
        return None

    def _encode(self) -> Encode:
        """How a handler's result is written; the function can be sent to a process."""
        return drop_result

    def _reject_reason(self, delivery: Any) -> str | None:  # noqa: ARG002
        """Why a job must fail without being run."""
        return None

    def _now_ms(self) -> int:
        """The server's time."""
        raise NotImplementedError

    def _carrier_of(self, delivery: Any) -> str | None:  # noqa: ARG002
        """The trace context that came with a job."""
        return None

    def _waited(self, delivery: Any) -> float | None:  # noqa: ARG002
        """Seconds for which a job was ready before we took it; None when that cannot be told."""
        return None

    async def _busy_elsewhere(self) -> bool:
        """Whether the queue still holds work that this or another worker must do."""
        return False

    async def _release(self) -> None:
        """Closes what the kind has opened besides its source."""
