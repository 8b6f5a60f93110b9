"""List and stream queues and their workers for code without an event loop: the same names, blocking."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from toril.backends.dead_letters import DeadLetterFilter
from toril.commands.stream_worker import StreamCounts
from toril.producer import ListQueue as AsyncListQueue
from toril.producer import StreamQueue as AsyncStreamQueue
from toril.producer.envelope_queue import EnvelopeCounts, EnvelopeQueue, NewEnvelope
from toril.protocol.duration import Duration
from toril.protocol.envelope import DEFAULT_MAX_ATTEMPTS, DeadLetter, Envelope
from toril.protocol.keys import ListKeys, StreamKeys
from toril.protocol.option_names import knows_its_names
from toril.sync._facade import Facade, made_like
from toril.sync.worker import WorkerFacade
from toril.worker import ListWorker as AsyncListWorker
from toril.worker import StreamWorker as AsyncStreamWorker

Q = TypeVar("Q", bound=EnvelopeQueue)


class _EnvelopeFacade(Facade[Q]):
    """What the queues of both kinds share."""

    def __repr__(self) -> str:
        return f"sync.{self._inner!r}"

    @property
    def name(self) -> str:
        return self._inner.name

    @knows_its_names("an option of jobs in lists and streams")
    def add(
        self,
        task_type: str | Envelope,
        payload: Any = None,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        job_id: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        correlation_id: str | None = None,
        user_id: str | None = None,
        source: str | None = None,
    ) -> Envelope:
        """Adds one job, to run now, after `delay`, or at `run_at`; the envelope as it was sent."""
        return self._call(
            self._inner.add,
            task_type,
            payload,
            delay=delay,
            run_at=run_at,
            job_id=job_id,
            max_attempts=max_attempts,
            correlation_id=correlation_id,
            user_id=user_id,
            source=source,
        )

    @knows_its_names("an option of jobs in lists and streams")
    def add_bulk(
        self,
        jobs: Iterable[NewEnvelope],
        *,
        delay: Duration | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> list[Envelope]:
        """Adds many jobs in order: `(task_type, payload)` pairs or envelopes. All are checked before one is sent."""
        return self._call(self._inner.add_bulk, jobs, delay=delay, max_attempts=max_attempts)

    def counts(self) -> EnvelopeCounts:
        """Where the jobs are."""
        return self._call(self._inner.counts)

    def pending(self) -> int:
        """How many jobs are still to be done: waiting, in a worker's hand, or scheduled."""
        return self._call(self._inner.pending)

    def totals(self) -> Mapping[str, int]:
        """How many jobs ever completed, were retried, died, stalled, were replayed or purged."""
        return self._call(self._inner.totals)

    def scheduled(self, limit: int = 100) -> list[tuple[Envelope, datetime]]:
        """The jobs that wait for their time, soonest first, and when they are due."""
        return self._call(self._inner.scheduled, limit)

    @knows_its_names("an argument of promote")
    def promote(self, job_ids: Collection[str] | None = None, *, limit: int | None = None) -> int:
        """Makes jobs due that wait for their time, all or those with these ids, soonest first; how many."""
        return self._call(self._inner.promote, job_ids, limit=limit)

    @knows_its_names("an argument of drain")
    def drain(self, *, delayed: bool = False) -> int:
        """Removes all jobs that nobody has taken yet, with `delayed` also those that wait for their time; how many."""
        return self._call(self._inner.drain, delayed=delayed)

    def remove(self, job_id: str) -> bool:
        """Removes a job that waits for its time or is dead; False when there is none with this id."""
        return self._call(self._inner.remove, job_id)

    def result(self, job_id: str) -> Any:
        """What a handler returned for a job, as long as its worker keeps results; `JobNotFound` otherwise."""
        return self._call(self._inner.result, job_id)

    def dead_letters(
        self, where: DeadLetterFilter | None = None, *, newest_first: bool = False
    ) -> Iterator[DeadLetter]:
        """The dead letters, oldest first or newest first."""
        letters = self._inner.dead_letters(where, newest_first=newest_first)
        while True:
            try:
                letter = self._call(letters.__anext__)
            except StopAsyncIteration:
                return
            yield letter

    def dead_letter(self, entry_id: str) -> DeadLetter | None:
        """One dead letter by its entry id."""
        return self._call(self._inner.dead_letter, entry_id)

    @knows_its_names("an argument of replay")
    def replay(
        self,
        where: DeadLetterFilter | str | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
    ) -> int:
        """Gives dead jobs another life, with all their attempts; how many."""
        return self._call(self._inner.replay, where, rate=rate, limit=limit)

    @knows_its_names("an argument of purge")
    def purge(self, where: DeadLetterFilter | str | None = None, *, limit: int | None = None) -> int:
        """Removes dead letters for good; how many."""
        return self._call(self._inner.purge, where, limit=limit)

    def export(self, path: str | Path, where: DeadLetterFilter | None = None) -> int:
        """Writes dead letters to a file, one JSON object in a line; how many. The letters stay."""
        return self._call(self._inner.export, path, where)

    def obliterate(self) -> None:
        """Removes everything: jobs, scheduled jobs, dead letters and totals."""
        self._call(self._inner.obliterate)

    async def _end(self) -> None:
        await self._inner.close()


class ListQueue(_EnvelopeFacade[AsyncListQueue]):
    """A queue in a list, from plain code."""

    @made_like(AsyncListQueue.__init__)
    def __init__(self, *args: Any, redis: Any = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncListQueue, *args, **named), redis)

    @property
    def keys(self) -> ListKeys:
        return self._inner.keys


class StreamQueue(_EnvelopeFacade[AsyncStreamQueue]):
    """A queue in a stream, from plain code."""

    @made_like(AsyncStreamQueue.__init__)
    def __init__(self, *args: Any, redis: Any = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncStreamQueue, *args, **named), redis)

    @property
    def keys(self) -> StreamKeys:
        return self._inner.keys

    def figures(self) -> StreamCounts:
        """Lag, pending entries and consumers of the group, as the server counts them."""
        return self._call(self._inner.figures)


class ListWorker(WorkerFacade[AsyncListWorker]):
    """Takes jobs of a list queue: at most once, or at least once with `reliable=True`."""

    @made_like(AsyncListWorker.__init__)
    def __init__(self, *args: Any, redis: Any = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncListWorker, *args, **named), redis)


class StreamWorker(WorkerFacade[AsyncStreamWorker]):
    """Takes jobs of a stream queue as a consumer of its group: at least once."""

    @made_like(AsyncStreamWorker.__init__)
    def __init__(self, *args: Any, redis: Any = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncStreamWorker, *args, **named), redis)
