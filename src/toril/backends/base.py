"""`Backend`: one queue as a worker's runtime uses it. There is one implementation per kind of queue.

Guarantee: the runtime (fetch loop, executors, lock renewer, stalled sweeper, shutdown) knows nothing of lists, streams
or scripts. It fetches deliveries from a `Backend` and submits outcomes; `promise` names what each kind guarantees.

    BullMQ   at least once     locks that are renewed, stalled jobs recovered by any worker
    list     at most once      (at least once with reliable pickup)
    stream   at least once     pending entries of a consumer group, claimed when idle, dead letters
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from toril.commands.name_refusals import RefusedNames
from toril.errors import TorilError
from toril.protocol.outcome import Outcome
from toril.protocol.refusals import Refusals

Promise = Literal["at most once", "at least once"]


@runtime_checkable
class Delivery(Protocol):
    """A job that was fetched and not yet settled: what the runtime needs to run, log, measure and settle it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str:
        """The job's name or task type: it selects the handler."""

    @property
    def attempts_made(self) -> int:
        """Attempts that ended before this one."""

    @property
    def max_attempts(self) -> int:
        """How many attempts the job itself asks for."""

    @property
    def refusals(self) -> Refusals | None:
        """How often, up to now, workers put it back because they had no handler for its name."""

    @property
    def lock_lost(self) -> bool:
        """Set when the lock belongs to another worker or is gone; the outcome will be refused."""

    @lock_lost.setter
    def lock_lost(self, lost: bool) -> None: ...


D = TypeVar("D", bound=Delivery)


@dataclass(slots=True)
class FinishedJob(Generic[D]):
    """A delivery and its outcome."""

    delivery: D
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Fetched(Generic[D]):
    """What a call returned: an ack error or None for each submitted outcome, and new deliveries."""

    deliveries: Sequence[D] = ()
    ack_errors: Sequence[TorilError | None] = ()  # None: accepted
    limited_for: float = 0.0  # seconds until the rate limit allows jobs again
    next_due_in: float | None = None  # seconds until a delayed job is due; None: none known
    exhausted: bool = True  # False: another fetch may return more at once
    refused: TorilError | None = None  # outcomes were accepted, but the server gives us no jobs now
    at_ms: int = 0  # when the outcomes were accepted, by the server's clock


@dataclass(frozen=True, slots=True)
class ReadyJobs:
    """How many jobs a fetch could return now."""

    count: int
    next_due_in: float | None = None  # seconds until a delayed job is due; None: none known
    held: int = 0  # of these, those that this worker has claimed and not delivered yet


def ready_jobs(counts: Sequence[int], first_due_ms: int | None, now_ms: int, *, held: int = 0) -> ReadyJobs:
    """The sum of these counts, and when the first delayed job is due."""
    due_in = None if first_due_ms is None else max(0.0, (first_due_ms - now_ms) / 1000)
    return ReadyJobs(sum(counts) + held, due_in, held)


OnReply: TypeAlias = Callable[[Fetched[D] | Exception], None]


class BackendHost(Protocol):
    """The worker, as its backend uses it."""

    def scheduler_broken(self) -> None:
        """Is called when the next job of a scheduler could not be created."""

    def may_recover(self) -> bool:
        """Whether expired locks mean dead workers: after an outage, those of live workers have expired as well."""


class Backend(Protocol[D]):
    """One queue, used by one worker."""

    kind: str
    promise: Promise
    has_cancellations: bool  # whether `cancellations` can return anything
    examined_at_once: (
        int  # how many jobs one call of `refuse_names` may examine: some 15 ms of the server's time
    )
    known_names: frozenset[
        str
    ]  # of jobs that live workers have handlers for, as of the last report; "*": all

    async def open(self) -> None:
        """Connects and registers the worker; raises when the server cannot be reached within the policy."""

    def submit(self, finished: Sequence[FinishedJob[D]], capacity: int, on_reply: OnReply[D]) -> None:
        """Settles outcomes and fetches up to `capacity` jobs, in one call if the kind can.

        `on_reply` is called once, later and in the event loop, unless the backend is closed before; it must not raise.
        It gets an exception only when the whole call failed: then `finished` is submitted again, and the backend
        recognises what had been accepted before (by the lock, the pending entry or the ledger). It is
        `Interrupted` when the event loop ends.
        """

    async def count_ready(self) -> ReadyJobs:
        """Counts the jobs that are ready, those included whose delay is over. Nothing is fetched."""

    async def wait(self, seconds: float) -> None:
        """Waits until there may be jobs, at most this long. Never cancelled: `wake` ends it early."""

    async def wake(self) -> None:
        """Ends a `wait` at once. No job is lost by it."""

    async def release_marker(self) -> None:
        """A wait ended because there are jobs, and this worker has no capacity any more: wakes another worker."""

    def renew_locks(self, deliveries: Sequence[D]) -> Sequence[D]:
        """Renews locks, also expired ones of jobs that no other worker had since. Returns those that are lost.

        Called from the lock renewer's thread.
        """

    def cancellations(self, deliveries: Sequence[D], /) -> Sequence[tuple[D, str]]:
        """The deliveries that were asked to stop, each with the reason. Called from the lock renewer's thread."""

    async def sweep(self) -> Sequence[str] | None:
        """Recovers jobs of dead workers; returns their ids, or None when another worker has swept just now."""

    async def refuse_names(self, known: Sequence[str], limit: int, factor: float, /) -> RefusedNames:
        """Delays jobs for which no worker has a handler, among the next `limit` waiting ones, without fetching them.

        `factor` multiplies the delays. Beside workers that do not announce the names of their handlers, as far as they
        can be recognised, none is examined.
        """

    def publish_report(self, figures: Mapping[str, object]) -> None:
        """Publishes the worker report and the names of the worker's handlers; they expire after some heartbeats.

        Called from the lock renewer's thread.
        """

    async def close(self, answers: bool = True, /) -> None:
        """Closes all connections and ends all calls. A server that does not answer is not told of it."""


async def settle_and_fetch(
    backend: Backend[D], finished: Sequence[FinishedJob[D]], capacity: int
) -> Fetched[D]:
    """Submits a call and returns its reply; raises when the whole call failed.

    A cancelled caller gets the reply all the same if it has jobs: otherwise they would not be settled.
    """
    replied: asyncio.Future[Fetched[D] | Exception] = asyncio.get_running_loop().create_future()
    backend.submit(finished, capacity, replied.set_result)
    cancelled: asyncio.CancelledError | None = None
    while not replied.done():
        try:
            await asyncio.wait({replied})
        except asyncio.CancelledError as error:
            cancelled = error
    reply = replied.result()
    if cancelled is not None and (isinstance(reply, Exception) or not reply.deliveries):
        raise cancelled
    if isinstance(reply, Exception):
        raise reply
    return reply
