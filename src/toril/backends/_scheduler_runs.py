"""The scheduled runs that begin with fetched jobs: the next job of a scheduler is created when the last one begins.

Guarantee: a step that failed is repeated before its job is settled, so no series ends because a worker or its
connection did; a step that is done twice creates no second job. A step that a full server refuses is repeated until
there is memory. A scheduler that cannot be read, here or by the server's script, is recorded in the queue and tried
again with every sweep: it continues when it, or the worker's version, was repaired.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import Any

from toril.backends.base import BackendHost
from toril.backends.next_run import next_step, repaired_record
from toril.commands import schedulers
from toril.commands.command import Command
from toril.commands.schedulers import BrokenScheduler
from toril.errors import Closed, RedisOutOfMemory, RedisUnavailable, ScriptFailed, TorilError
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.protocol.repeat_rules import DEFAULT_RULES, RepeatRules
from toril.transport import AsyncTransport

logger = logging.getLogger("toril.worker")


class SchedulerRuns:
    """Steps that are still to be done, by the id of the job that began. False when there are none."""

    __slots__ = ("_host", "_keys", "_records", "_rules", "_steps", "_transport")

    def __init__(
        self,
        keys: QueueKeys,
        transport: AsyncTransport,
        host: BackendHost | None = None,
        rules: RepeatRules = DEFAULT_RULES,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._transport = transport
        self._host = host
        self._steps: dict[str, Command[Any]] = {}
        self._records: dict[str, JobRecord] = {}  # the jobs of steps that create another job

    def __bool__(self) -> bool:
        return bool(self._steps)

    def begin(self, records: Iterable[JobRecord]) -> None:
        """Sends the steps of jobs that schedulers created; those that get no reply are left for `run_pending`."""
        for record in records:
            if b"rjk" in record.fields:
                self._plan(record)
        for job_id, step in list(self._steps.items()):
            self._transport.submit(step, functools.partial(self._replied, job_id, step))

    def _plan(self, record: JobRecord) -> None:
        try:
            step = next_step(self._keys, record, self._transport.clock.now_ms(), self._rules)
        except Exception as error:  # noqa: BLE001  # a damaged hash, or a repeat_strategy of the application
            self._record_broken(record, error)
            return
        if step is not None:
            self._steps[record.id], self._records[record.id] = step, record

    async def run_pending(self) -> None:
        """Does the steps that are left, then records the failed ones; raises when the server cannot be reached."""
        for _ in range(2):
            steps = dict(self._steps)
            replies = await self._transport.run_many(list(steps.values())) if steps else []
            for (job_id, step), reply in zip(steps.items(), replies, strict=True):
                if isinstance(reply, RedisUnavailable):
                    raise reply
                self._replied(job_id, step, reply)

    def _replied(self, job_id: str, step: Command[Any], reply: object) -> None:
        # A step may have been sent twice, and the first reply may have replaced it.
        if isinstance(reply, (RedisUnavailable, Closed)) or self._steps.get(job_id) is not step:
            return
        del self._steps[job_id]
        record = self._records.pop(job_id, None)
        if record is not None and isinstance(reply, RedisOutOfMemory):
            # Its job ends meanwhile, and may be removed when there is memory again.
            self._steps[job_id] = schedulers.resume_scheduler(self._keys, step)
        elif isinstance(reply, RedisOutOfMemory):
            self._steps[job_id] = step
        elif record is not None and isinstance(reply, TorilError):
            self._record_broken(record, reply)
        elif isinstance(reply, TorilError):
            logger.error(
                "a scheduler of %s cannot go on after job %s: %s; see `toril doctor`",
                self._keys.name,
                job_id,
                reply,
            )
            self._notify()

    # --- schedulers that cannot continue --------------------------------------------------------------------

    def _record_broken(self, record: JobRecord, error: Exception) -> None:
        scheduler_id = record.repeat_job_key or ""
        logger.error(
            "scheduler %s of %s cannot go on after job %s: %s; it is kept, and goes on when it can be read: see "
            "`toril doctor`",
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
        self._notify()

    def _notify(self) -> None:
        if self._host is not None:
            self._host.scheduler_broken()

    async def resume_broken(self) -> None:
        """Continues schedulers that were broken and can be read now; raises when the server cannot be reached."""
        for broken in await self._transport.run(schedulers.broken_schedulers(self._keys)):
            try:
                await self._resume(broken)
            except RedisUnavailable:
                raise
            except TorilError as error:
                logger.warning(
                    "scheduler %s of %s cannot go on, and is tried again later: %s; see `toril doctor`",
                    broken.id,
                    self._keys.name,
                    error,
                )

    async def _resume(self, broken: BrokenScheduler) -> None:
        is_there = await self._transport.run(schedulers.next_run_ms(self._keys, broken.id)) is not None
        scheduler = await self._transport.run(schedulers.get_scheduler(self._keys, broken.id))
        now_ms = await self._transport.now_ms()
        try:
            record = repaired_record(broken, scheduler)
            step = next_step(self._keys, record, now_ms, self._rules) if is_there else None
        except Exception:  # noqa: BLE001
            return  # still broken: the log, the doctor and the metrics have reported it
        if step is None:  # it is gone, or over
            await self._transport.run(schedulers.clear_broken(self._keys, broken.id))
            return
        try:
            made = await self._transport.run(schedulers.resume_scheduler(self._keys, step))
        except ScriptFailed:
            return  # still broken, for the server
        if made is not None:
            logger.warning("scheduler %s of %s goes on with job %s", broken.id, self._keys.name, made)
