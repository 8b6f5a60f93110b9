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
from toril.protocol.json_types import JsonValue
from toril.protocol.keys import ListKeys, StreamKeys
from toril.protocol.option_names import knows_its_names
from toril.sync._facade import Facade, made_like
from toril.sync.worker import WorkerFacade
from toril.worker import ListWorker as AsyncListWorker
from toril.worker import StreamWorker as AsyncStreamWorker

Q = TypeVar("Q", bound=EnvelopeQueue)


class _EnvelopeFacade(Facade[Q]):
    """The base of both kinds of queue."""

    def __repr__(self) -> str:
        return f"sync.{self._inner!r}"

    @property
    def name(self) -> str:
        return self._inner.name

    @knows_its_names("an option of jobs in lists and streams")
    def add(
        self,
        task_type: str | Envelope,
        payload: JsonValue = None,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        job_id: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        correlation_id: str | None = None,
        user_id: str | None = None,
        source: str | None = None,
    ) -> Envelope:
        """Adds one job, to run now, after `delay`, or at `run_at`; returns the envelope."""
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
        """Returns the number of jobs by state."""
        return self._call(self._inner.counts)

    def pending(self) -> int:
        """Returns the number of waiting, active and scheduled jobs."""
        return self._call(self._inner.pending)

    def totals(self) -> Mapping[str, int]:
        """Returns how many jobs ever completed, were retried, became dead letters, stalled, were replayed or purged."""
        return self._call(self._inner.totals)

    def scheduled(self, limit: int = 100) -> list[tuple[Envelope, datetime]]:
        """Returns the scheduled jobs, soonest first, and when they are due."""
        return self._call(self._inner.scheduled, limit)

    @knows_its_names("an argument of promote")
    def promote(self, job_ids: Collection[str] | None = None, *, limit: int | None = None) -> int:
        """Makes scheduled jobs due now, all or those with these ids, soonest first; returns how many."""
        return self._call(self._inner.promote, job_ids, limit=limit)

    @knows_its_names("an argument of drain")
    def drain(self, *, delayed: bool = False) -> int:
        """Removes all waiting jobs, with `delayed` also the scheduled ones; returns how many."""
        return self._call(self._inner.drain, delayed=delayed)

    def remove(self, job_id: str) -> bool:
        """Removes a scheduled job or a dead letter by job id; returns False when there is none."""
        return self._call(self._inner.remove, job_id)

    def result(self, job_id: str) -> JsonValue:
        """Returns the stored result of a job; raises `JobNotFound` when there is none."""
        return self._call(self._inner.result, job_id)

    def dead_letters(
        self, where: DeadLetterFilter | None = None, *, newest_first: bool = False
    ) -> Iterator[DeadLetter]:
        """Yields the dead letters, oldest first or newest first."""
        dead_letters = self._inner.dead_letters(where, newest_first=newest_first)
        while True:
            try:
                dead_letter = self._call(dead_letters.__anext__)
            except StopAsyncIteration:
                return
            yield dead_letter

    def dead_letter(self, entry_id: str) -> DeadLetter | None:
        """Returns one dead letter by its entry id."""
        return self._call(self._inner.dead_letter, entry_id)

    @knows_its_names("an argument of replay")
    def replay(
        self,
        where: DeadLetterFilter | str | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
    ) -> int:
        """Adds the jobs of dead letters to the queue again, with all their attempts; returns how many."""
        return self._call(self._inner.replay, where, rate=rate, limit=limit)

    @knows_its_names("an argument of purge")
    def purge(self, where: DeadLetterFilter | str | None = None, *, limit: int | None = None) -> int:
        """Removes dead letters; returns how many."""
        return self._call(self._inner.purge, where, limit=limit)

    def export(self, path: str | Path, where: DeadLetterFilter | None = None) -> int:
        """Writes dead letters to a file, one JSON object per line, and keeps them; returns how many."""
        return self._call(self._inner.export, path, where)

    def obliterate(self) -> None:
        """Removes everything: jobs, scheduled jobs, dead letters and totals."""
        self._call(self._inner.obliterate)

    async def _end(self) -> None:
        await self._inner.close()


class ListQueue(_EnvelopeFacade[AsyncListQueue]):
    """A list queue, blocking."""

    @made_like(AsyncListQueue.__init__)
    def __init__(self, *args: Any, redis: object = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncListQueue, *args, **named), redis)

    @property
    def keys(self) -> ListKeys:
        return self._inner.keys


class StreamQueue(_EnvelopeFacade[AsyncStreamQueue]):
    """A stream queue, blocking."""

    @made_like(AsyncStreamQueue.__init__)
    def __init__(self, *args: Any, redis: object = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncStreamQueue, *args, **named), redis)

    @property
    def keys(self) -> StreamKeys:
        return self._inner.keys

    def figures(self) -> StreamCounts:
        """Lag, pending entries and consumers of the consumer group, as the server counts them."""
        return self._call(self._inner.figures)


class ListWorker(WorkerFacade[AsyncListWorker]):
    """Processes jobs of a list queue: at most once, or at least once with `reliable=True`."""

    @made_like(AsyncListWorker.__init__)
    def __init__(self, *args: Any, redis: object = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncListWorker, *args, **named), redis)


class StreamWorker(WorkerFacade[AsyncStreamWorker]):
    """Processes jobs of a stream queue as a member of its consumer group: at least once."""

    @made_like(AsyncStreamWorker.__init__)
    def __init__(self, *args: Any, redis: object = None, **named: Any) -> None:
        super().__init__(functools.partial(AsyncStreamWorker, *args, **named), redis)

    @property
    def consumer(self) -> str:
        """The name of this worker in the consumer group; every start makes a new one."""
        return self._inner.consumer
