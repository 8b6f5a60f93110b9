"""The series that go on with jobs in hand: the next job of a scheduler is made when the last one begins.

Guarantee: a step that could not be done is done before its job is settled, so no series ends because a worker or its
connection did; a step that is done twice makes no second job. One that a full server refuses is tried until there is
memory. A scheduler that cannot be read, here or by the server's script, is noted in the queue and tried again with
every sweep: it goes on when it, or the worker's version, was mended.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from toril.backends.next_run import mended_record, next_step
from toril.commands import schedulers
from toril.commands.command import Command
from toril.commands.schedulers import BrokenScheduler
from toril.errors import RedisOutOfMemory, RedisUnavailable, ScriptFailed, TorilError
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport

logger = logging.getLogger("toril.worker")

# Whatever a broken hash can cause.
UNREADABLE = (TorilError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError)


class Series:
    """Steps that are still to be done, by the job with which they began. False when there are none."""

    __slots__ = ("_keys", "_on_broken", "_records", "_steps", "_transport")

    def __init__(
        self, keys: QueueKeys, transport: AsyncTransport, on_broken: Callable[[], Any] | None = None
    ) -> None:
        self._keys = keys
        self._transport = transport
        self._on_broken = on_broken
        self._steps: dict[str, Command[Any]] = {}
        self._records: dict[str, JobRecord] = {}  # the jobs of steps that make another job

    def __bool__(self) -> bool:
        return bool(self._steps)

    def plan(self, records: Iterable[JobRecord]) -> None:
        """Takes note of jobs that schedulers made."""
        for record in records:
            if b"rjk" in record.fields:
                self._plan_next(record)

    def _plan_next(self, record: JobRecord) -> None:
        try:
            step = next_step(self._keys, record, self._transport.clock.now_ms())
        except UNREADABLE as error:
            self._break(record, error)
            return
        if step is not None:
            self._steps[record.id], self._records[record.id] = step, record

    async def begin(self, records: Iterable[JobRecord]) -> None:
        """Plans and does; what cannot be done now is left for `go_on`."""
        self.plan(records)
        if self._steps:
            with contextlib.suppress(RedisUnavailable):
                await self.go_on()

    def post(self) -> None:
        """Sends the steps without waiting; those that are not answered stay."""
        for job_id, step in list(self._steps.items()):
            self._transport.submit(step, functools.partial(self._went_on, job_id, step))

    async def go_on(self) -> None:
        """Does what is left, then notes what could not be done; raises when the server cannot be reached."""
        for _ in range(2):
            steps = dict(self._steps)
            answers = await self._transport.run_many(list(steps.values())) if steps else []
            for (job_id, step), answer in zip(steps.items(), answers, strict=True):
                if isinstance(answer, RedisUnavailable):
                    raise answer
                self._went_on(job_id, step, answer)

    def _went_on(self, job_id: str, step: Command[Any], answer: object) -> None:
        # A step may be on its way twice, and the first answer has brought another in its place.
        if isinstance(answer, RedisUnavailable) or self._steps.get(job_id) is not step:
            return
        del self._steps[job_id]
        record = self._records.pop(job_id, None)
        if record is not None and isinstance(answer, RedisOutOfMemory):
            # Its job ends meanwhile, and may be gone when there is memory again.
            self._steps[job_id] = schedulers.resume_scheduler(self._keys, step)
        elif isinstance(answer, RedisOutOfMemory):
            self._steps[job_id] = step
        elif record is not None and isinstance(answer, TorilError):
            self._break(record, answer)
        elif isinstance(answer, TorilError):
            logger.error("a scheduler of %s cannot go on after job %s: %s", self._keys.name, job_id, answer)
            self._tell()

    # --- schedulers that cannot go on -----------------------------------------------------------------------

    def _break(self, record: JobRecord, error: Exception) -> None:
        scheduler_id = record.repeat_job_key or ""
        logger.error(
            "scheduler %s of %s cannot go on after job %s: %s; it is kept, and goes on when it can be read",
            scheduler_id,
            self._keys.name,
            record.id,
            error,
        )
        self._steps[record.id] = schedulers.record_broken(
            self._keys,
            BrokenScheduler(
                id=scheduler_id,
                job_id=record.id,
                reason=str(error),
                since_ms=self._transport.clock.now_ms(),
                data=record.raw_data,
                opts=record.fields.get(b"opts") or b"",
            ),
        )
        self._tell()

    def _tell(self) -> None:
        if self._on_broken is not None:
            self._on_broken()

    async def revive(self) -> None:
        """Goes on with schedulers that were broken and can be read now; raises when the server cannot be reached."""
        for broken in await self._transport.run(schedulers.broken_schedulers(self._keys)):
            try:
                await self._revive(broken)
            except RedisUnavailable:
                raise
            except TorilError as error:
                logger.warning("scheduler %s of %s cannot go on: %s", broken.id, self._keys.name, error)

    async def _revive(self, broken: BrokenScheduler) -> None:
        is_there = await self._transport.run(schedulers.next_run_ms(self._keys, broken.id)) is not None
        scheduler = await self._transport.run(schedulers.get_scheduler(self._keys, broken.id))
        now_ms = await self._transport.now_ms()
        try:
            step = next_step(self._keys, mended_record(broken, scheduler), now_ms) if is_there else None
        except UNREADABLE:
            return  # still broken: it was said, and doctor and the metrics say it
        if step is None:  # it is gone, or over
            await self._transport.run(schedulers.clear_broken(self._keys, broken.id))
            return
        try:
            made = await self._transport.run(schedulers.resume_scheduler(self._keys, step))
        except ScriptFailed:
            return  # the same, but for the server
        if made is not None:
            logger.warning("scheduler %s of %s goes on with job %s", broken.id, self._keys.name, made)
