"""The series that go on with jobs in hand: the next job of a scheduler is made when the last one begins.

Guarantee: a step that could not be done is done before its job is settled, so no series ends because a worker or its
connection did; a step that is done twice makes no second job.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable

from toril.commands._command import Command
from toril.contract.errors import StoreUnavailable, TorilError
from toril.contract.keys import QueueKeys
from toril.contract.record import JobRecord
from toril.queues.repeats import next_step
from toril.store import AsyncStore

logger = logging.getLogger("toril.worker")


class Series:
    """Steps that are still to be done, by the job with which they began. False when there are none."""

    __slots__ = ("_keys", "_steps", "_store")

    def __init__(self, keys: QueueKeys, store: AsyncStore) -> None:
        self._keys = keys
        self._store = store
        self._steps: dict[str, Command[str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._steps)

    def plan(self, records: Iterable[JobRecord]) -> None:
        """Takes note of jobs that schedulers made."""
        for record in records:
            if b"rjk" in record.fields:
                self._plan_next(record)

    def _plan_next(self, record: JobRecord) -> None:
        try:
            step = next_step(self._keys, record, self._store.clock.now_ms())
        except (
            TorilError,
            ValueError,
            TypeError,
            ArithmeticError,
        ) as error:  # whatever a broken hash can cause
            self._give_up(record.id, error)
            return
        if step is not None:
            self._steps[record.id] = step

    async def begin(self, records: Iterable[JobRecord]) -> None:
        """Plans and does; what cannot be done now is left for `go_on`."""
        self.plan(records)
        if self._steps:
            with contextlib.suppress(StoreUnavailable):
                await self.go_on()

    def post(self) -> None:
        """Sends the steps without waiting; those that cannot be sent or are not answered stay."""
        for job_id, step in self._steps.items():
            self._store.post(step, functools.partial(self._went_on, job_id))

    async def go_on(self) -> None:
        """Does what is left; raises when the server cannot be reached."""
        steps = dict(self._steps)
        answers = await self._store.run_many(list(steps.values()))
        for job_id, answer in zip(steps, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                raise answer
            self._went_on(job_id, answer)

    def _went_on(self, job_id: str, answer: str | TorilError | None) -> None:
        if isinstance(answer, StoreUnavailable):
            return
        self._steps.pop(job_id, None)
        if isinstance(answer, TorilError):
            self._give_up(job_id, answer)

    def _give_up(self, job_id: str, error: Exception) -> None:
        logger.error("the series of job %s in %s cannot go on: %s", job_id, self._keys.name, error)
