"""A queue kind as the worker's runtime sees it: one protocol, three adapters.

Guarantee: the runtime (pump, executors, keeper, sweeper, shutdown) knows nothing of lists, streams or scripts. It takes
deliveries from a `Source` and hands back outcomes; what each kind promises stands in `promise`.

    BullMQ   at least once     locks with heartbeats, stalled jobs recovered by any worker
    list     at most once      (at least once with reliable pickup)
    stream   at least once     pending entries of a consumer group, claimed when idle, dead letters
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from toril.errors import TorilError
from toril.protocol.outcome import Outcome
from toril.protocol.refusals import Refusals

Promise = Literal["at most once", "at least once"]


@runtime_checkable
class Delivery(Protocol):
    """One job in hand: enough for the runtime to run, log, measure and settle it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str:
        """The job's name or task type: how a handler is chosen."""

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
        """Set by the keeper when the job is no longer ours; its outcome will be refused."""

    @lock_lost.setter
    def lock_lost(self, lost: bool) -> None: ...


@dataclass(slots=True)
class FinishedJob:
    """A delivery and what became of it."""

    delivery: Any
    outcome: Outcome
    memo: Any = None  # the runtime's own, returned untouched


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an exchange brought: a verdict for each outcome handed in, and new deliveries."""

    deliveries: Sequence[Any] = ()
    ack_errors: Sequence[TorilError | None] = ()  # None: accepted
    limited_for: float = 0.0  # seconds until the rate limit opens again
    next_due_in: float | None = None  # seconds until a delayed job is due; None: none known
    exhausted: bool = True  # False: asking again at once may bring more
    refused: TorilError | None = None  # outcomes were accepted, but the server gives us no jobs now
    at_ms: int = 0  # when the outcomes were accepted, by the server's clock


class Source(Protocol):
    """One queue, seen by one worker."""

    kind: str
    promise: Promise
    known_names: frozenset[
        str
    ]  # job names that living workers have handlers for, as of our last report; "*": all

    async def open(self) -> None:
        """Connects and says who we are; raises when the server cannot be reached within the policy."""

    async def exchange(self, settled: Sequence[FinishedJob], room: int) -> Fetched:
        """Hands back outcomes and takes up to `room` jobs, in one call if the kind can.

        Never cancelled by the runtime. Raises only when the whole call failed; then `settled` is handed in again, and
        the source must refuse what it had accepted before (the lock, the pending entry or the ledger tells).
        """

    async def wait(self, seconds: float) -> None:
        """Sleeps until there may be work, at most this long. Never cancelled: `wake` ends it early."""

    async def wake(self) -> None:
        """Ends a `wait` at once, losing nothing."""

    async def decline(self) -> None:
        """A wait ended because there is work, but we have no room any more: let another worker know of it."""

    def keep_alive(self, deliveries: Sequence[Any]) -> Sequence[Any]:
        """Renews our hold on jobs in hand, also where it lapsed and nobody had the job meanwhile; returns those we have
        lost. Called from the keeper's thread."""

    async def sweep(self) -> Sequence[str] | None:
        """Recovers jobs that other workers left behind; their ids, or None when another worker did it just now."""

    def report(self, figures: dict[str, Any]) -> None:
        """Publishes the worker's own figures and names for as long as it lives. Called from the keeper's thread."""

    async def close(self) -> None:
        """Closes all connections."""
