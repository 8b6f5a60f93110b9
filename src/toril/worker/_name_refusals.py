"""Jobs without a handler for their name: they are put back, and left to workers that have one."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Generic, Protocol

from toril.backends.base import Backend, D
from toril.errors import TorilError
from toril.protocol.outcome import Failed, UnknownName, judge_name
from toril.protocol.worker_options import WorkerOptions
from toril.worker._connection import RenewsLocks
from toril.worker._job_adapter import JobAdapter
from toril.worker._observer import WorkerObserver

# A worker that refuses jobs for which others have handlers fetches none for so long: refusing is faster than running,
# and those others would find the queue empty. Longer than the jobs are delayed, so that others fetch them first.
LEAVE_TO_OTHERS = 0.3
# How often a worker that refuses jobs asks whether others have handlers for them by now.
NAMES_SECONDS = 1.0
# After so many refusals the jobs that wait are refused without being fetched, for a third of the cost: fewer are not
# worth a look at the jobs behind them.
MANY_REFUSALS = 50
# … and as long as this part of them is refused. Otherwise the next ones to be fetched have a handler.
MOSTLY_UNKNOWN = 0.9


class PausesFetching(Protocol):
    """The fetch loop."""

    @property
    def is_fetching(self) -> bool:
        """Whether the worker has started and does not stop."""

    def pause(self, seconds: float) -> None:
        """Fetches no jobs for so long."""


class NameRefusals(Generic[D]):
    """Refuses jobs for one worker. `connect` names the services that it uses, before the first job."""

    _fetch_loop: PausesFetching
    _lock_renewer: RenewsLocks

    def __init__(
        self,
        names: tuple[str, ...],
        backend: Backend[D],
        adapter: JobAdapter[D],
        observer: WorkerObserver[D],
        options: WorkerOptions,
    ) -> None:
        self._names = names  # of jobs that this worker has handlers for
        self._backend = backend
        self._observer = observer
        self._adapter = adapter
        self._options = options
        self._asked_at = -math.inf  # when other workers' names were last asked for
        # Jobs that are refused at the same time get the same delay: different delays cost the server a search each.
        self._refused_at, self._jitter = 0, 0.0
        self._count = 0  # refusals since waiting jobs were last refused together
        self._refusing: asyncio.Task[None] | None = None

    def connect(self, fetch_loop: PausesFetching, lock_renewer: RenewsLocks) -> None:
        self._fetch_loop = fetch_loop
        self._lock_renewer = lock_renewer

    def outcome_of(self, delivery: D) -> UnknownName | Failed:
        """The outcome of a job without a handler: no attempt is made."""
        now_ms = self._adapter.now_ms()
        if now_ms != self._refused_at:
            self._refused_at, self._jitter = now_ms, random.random()
        known = self._backend.known_names
        return judge_name(
            delivery.name,
            self._names,
            delivery.refusals,
            now_ms=now_ms,
            options=self._options,
            rng=lambda: self._jitter,
            is_known_elsewhere=delivery.name in known or "*" in known,
        )

    def refused(self, outcome: UnknownName, now: float) -> None:
        """A job was refused at this time of the monotonic clock."""
        if outcome.is_known_elsewhere:
            self._fetch_loop.pause(LEAVE_TO_OTHERS)
            return
        if now - self._asked_at >= NAMES_SECONDS:
            self._asked_at = now
            self._lock_renewer.renew_soon()  # its report asks for the names of others
        self._count += 1
        if self._count >= MANY_REFUSALS and (self._refusing is None or self._refusing.done()):
            self._count = 0
            self._refusing = asyncio.create_task(self._refuse_waiting(), name="toril-refuse-names")

    async def _refuse_waiting(self) -> None:
        """Refuses waiting jobs while nearly all of those that are examined have unknown names."""
        limit = self._backend.examined_at_once
        try:
            while self._fetch_loop.is_fetching:
                factor = 1 + 0.4 * (random.random() - 0.5)  # ±20 %, as for jobs that were fetched
                done = await self._backend.refuse_names(self._names, limit, factor)
                for name, count in done.counts.items():
                    self._observer.names_refused(name, count)
                if done.total < limit * MOSTLY_UNKNOWN:
                    return
        except TorilError:
            return  # the fetch loop has the same problem, and reports it
