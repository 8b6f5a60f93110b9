"""`queue.schedulers` for code without an event loop: the same names, blocking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import ParamSpec, Protocol, TypeVar

from toril.jobs import BlockingJob, BlockingJobCalls
from toril.producer import Scheduler
from toril.producer import Schedulers as AsyncSchedulers
from toril.producer.job_builder import NO_DATA
from toril.protocol.duration import Duration
from toril.protocol.json_types import JsonValue
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import JobOptions

V = TypeVar("V")
P = ParamSpec("P")


class _Call(Protocol):
    def __call__(self, function: Callable[P, Awaitable[V]], *args: P.args, **named: P.kwargs) -> V: ...


class Schedulers:
    """The schedulers of one queue: they add jobs by a cron pattern or at an interval."""

    def __init__(self, schedulers: AsyncSchedulers, call: _Call, job_calls: BlockingJobCalls) -> None:
        self._schedulers = schedulers
        self._call = call
        self._job_calls = job_calls

    @knows_its_names("an argument of upsert")
    def upsert(
        self,
        scheduler_id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        immediately: bool = False,
        offset: Duration | None = None,
        name: str | None = None,
        data: object = NO_DATA,
        options: JobOptions | Mapping[str, object] | None = None,
    ) -> BlockingJob[JsonValue]:
        """Creates a scheduler, or changes the one of that id; returns its next job."""
        job = self._call(
            self._schedulers.upsert,
            scheduler_id,
            cron=cron,
            every=every,
            tz=tz,
            start=start,
            end=end,
            limit=limit,
            immediately=immediately,
            offset=offset,
            name=name,
            data=data,
            options=options,
        )
        return BlockingJob(job.record, self._job_calls, added=job.added)

    def get(self, scheduler_id: str) -> Scheduler | None:
        """Returns a scheduler by its id."""
        return self._call(self._schedulers.get, scheduler_id)

    def list(self, start: int = 0, end: int = -1, *, ascending: bool = True) -> list[Scheduler]:
        """Returns all schedulers, soonest first."""
        return self._call(self._schedulers.list, start, end, ascending=ascending)

    def remove(self, scheduler_id: str) -> bool:
        """Removes a scheduler and its next job; returns False when there was none. A running job goes on."""
        return self._call(self._schedulers.remove, scheduler_id)

    def count(self) -> int:
        """Returns the number of schedulers."""
        return self._call(self._schedulers.count)
