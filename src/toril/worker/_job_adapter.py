"""`JobAdapter`: what a worker's runtime asks about a kind of queue: its backend, its job objects, its results.

Guarantee: the runtime handles job objects only through the adapter; it knows neither `Job` nor `Envelope`.
"""

from __future__ import annotations

from typing import Any, Protocol

from toril.backends.base import Backend, BackendHost, D, FinishedJob
from toril.protocol.backoff import Backoff
from toril.protocol.codecs import QueueCodecs
from toril.worker._executors import Executor, Handler
from toril.worker._results import Encode

# Why a job is rejected that was fetched after its time.
EXPIRED = "the job expired before it was run"


class JobAdapter(Protocol[D]):
    """One kind of queue, for one worker. A job object is what a handler gets: a `Job` or an `Envelope`."""

    kind: str
    codecs: QueueCodecs | None  # of the queue's payloads

    def make_backend(self, names: tuple[str, ...] = (), host: BackendHost | None = None, /) -> Backend[D]:
        """A new backend, with new connections. It is called at every start of the worker.

        `names` are those of jobs that the worker has handlers for; "*" means all.
        """

    async def close(self) -> None:
        """Closes the connections besides those of the backend."""

    # --- handlers -------------------------------------------------------------------------------------------

    def make_job(self, delivery: D, blocking: bool, /) -> Any:
        """The job object for a handler; raises if the payload does not fit the worker's model."""

    async def decoded(self, job: Any, /) -> Any:
        """The job object with its payload as it was before the codecs; raises if it cannot be decoded."""

    def blocking_job(self, job: Any, /) -> Any:
        """The same job object with blocking methods, for a function in a thread."""

    def make_process_executor(self, handler: Handler, *, batches: bool = False) -> Executor:
        """An executor that runs the handler in processes, on jobs or on batches of them."""

    def encoder(self) -> Encode:
        """The function that encodes a result; it can be sent to a process."""

    def reject_reason(self, delivery: D, /) -> str | None:
        """Why a job must fail without being run; None if it may run."""

    def backoff_of(self, delivery: D, /) -> Backoff | None:
        """The backoff that the job asks for."""

    def group_of(self, delivery: D, /) -> str | None:
        """The group of the job, if it has one."""

    # --- job objects ----------------------------------------------------------------------------------------

    def job_for_callbacks(self, delivery: D, blocking: bool, /) -> Any:
        """The job object for callbacks when no handler got one: the job was rejected before."""

    def settled_job(self, finished: FinishedJob[D], job: Any, at_ms: int, /) -> Any:
        """The job object for callbacks when the queue has accepted an outcome: with what that changed in the job."""

    def payload_of(self, job: Any, /) -> Any:
        """The payload for the log."""

    def set_cancelled(self, job: Any, /) -> None:
        """Marks the job object: the job was cancelled."""

    def set_lock_lost(self, job: Any, /) -> None:
        """Marks the job object: the lock is lost."""

    def waits_for_children(self, job: Any, /) -> bool:
        """Whether the handler has moved its job to waiting-children."""

    # --- figures --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The server's time."""

    def trace_carrier(self, delivery: D) -> str | None:
        """The trace context that was added with the job."""

    def seconds_waited(self, delivery: D) -> float | None:
        """Seconds for which a job was ready before it was fetched; None when that is not known."""

    async def has_jobs(self) -> bool:
        """Whether the queue holds jobs that this or another worker must still run, retries included."""
