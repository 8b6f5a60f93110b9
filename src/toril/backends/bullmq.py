"""The backend of BullMQ queues: outcomes become settlements of the official scripts, job hashes become deliveries.

Guarantee: what Node would write for the same outcome is written, at least once and accepted once: an outcome whose
reply was lost is submitted again, and one that had been accepted is recognised by the job's state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from toril.backends._bullmq_calls import BullmqCalls
from toril.backends._bullmq_delivery import BullmqConfig, BullmqDelivery, LockTokens
from toril.backends._left_jobs import LeftJobs
from toril.backends._outcome_encoding import ms, record_after
from toril.backends._result_forwarder import ResultForwarder
from toril.backends._scheduler_runs import SchedulerRuns
from toril.backends._silent_workers import SilentWorkers
from toril.backends._worker_report import publish_report
from toril.backends.base import BackendHost, FinishedJob, OnReply, Promise, ReadyJobs, ready_jobs
from toril.commands import groups, locks, manage, name_refusals, read, worker
from toril.commands.locks import Sweep
from toril.commands.name_refusals import RefusedNames
from toril.protocol.keys import QueueKeys, client_name
from toril.transport import AsyncTransport, BlockingTransport, Reader

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
SUSPECTS_PER_STEP = 500


class BullmqBackend:
    """One BullMQ queue, used by one worker."""

    kind = "bullmq"
    promise: Promise = "at least once"
    has_cancellations = True
    examined_at_once = 1000

    def __init__(
        self,
        keys: QueueKeys,
        transport: AsyncTransport,
        renewer_transport: BlockingTransport,
        config: BullmqConfig,
        host: BackendHost | None = None,
    ) -> None:
        self.keys = keys
        self.transport = transport
        self._renewer_transport = renewer_transport
        self._config = config
        self._reader: Reader | None = None
        self._tokens = LockTokens()
        self._scheduler_runs = SchedulerRuns(keys, transport, host, config.repeat_rules)
        self._left_jobs = LeftJobs(keys, transport)
        self._calls = BullmqCalls(keys, transport, config, self._tokens, self._scheduler_runs)
        self.known_names: frozenset[str] = frozenset()
        self._silent_workers = SilentWorkers(keys, transport, config.worker_id)
        self._has_marker = False  # whether the last wait ended by a marker

    async def open(self) -> None:
        # Damaged scripts are found here, not by the first job.
        worker.settle(self.keys, [], capacity=0, pickup=self._calls.new_pickup(), now_ms=0)
        await self.transport.connect()
        if self._config.events_max_len is not None:
            await self.transport.run_many(
                manage.set_meta(self.keys, events_max_len=self._config.events_max_len)
            )
        if self._reader is None:
            self._reader = self.transport.open_reader(
                name=client_name(self.keys, "worker", self._config.worker_id)
            )
        # A worker that always finds jobs never waits, yet its name must be in the list of connections.
        await self._reader.run(worker.has_marker(self.keys), 0)

    async def close(self, _answers: bool = True, /) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        await self.transport.close()
        await self._calls.tasks.wait()

    def submit(
        self,
        finished: Sequence[FinishedJob[BullmqDelivery]],
        capacity: int,
        on_reply: OnReply[BullmqDelivery],
    ) -> None:
        self._calls.submit(finished, capacity, on_reply)

    async def count_ready(self) -> ReadyJobs:
        now_ms = self.transport.clock.now_ms()
        *counts, first_due = await asyncio.gather(
            *(self.transport.run(one) for one in worker.count_ready(self.keys, now_ms))
        )
        return ready_jobs([one or 0 for one in counts], first_due, now_ms)

    # --- waiting --------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None:
            return
        due_ms = await self._reader.run(worker.wait_for_marker(self.keys, seconds), seconds)
        self._has_marker = due_ms is not None
        if due_ms:
            await self._wait_until(due_ms, seconds)

    async def _wait_until(self, due_ms: float, seconds: float) -> None:
        """The marker holds the time at which a delayed job is due: until then, new markers may still come."""
        remaining = (due_ms - self.transport.clock.now_ms()) / 1000
        if remaining > 0 and self._reader is not None:
            timeout = max(0.001, min(remaining, seconds))
            await self._reader.run(worker.wait_for_marker(self.keys, timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def release_marker(self) -> None:
        if self._has_marker:  # this worker removed the marker, and no other one was woken by it
            await self.transport.run(worker.set_marker(self.keys))

    # --- renewing and sweeping ------------------------------------------------------------------------------

    def renew_locks(self, deliveries: Sequence[BullmqDelivery]) -> list[BullmqDelivery]:
        # Of two deliveries of one job, the older one has lost its lock for certain.
        newest = {one.id: one for one in deliveries}
        held = [one.lock for one in newest.values()]
        lost: set[str] = set()
        for start in range(0, len(held), LOCKS_PER_CALL):
            part = held[start : start + LOCKS_PER_CALL]
            gone = self._renewer_transport.run(
                locks.extend_locks(self.keys, part, lock_ms=self._config.lock_ms)
            )
            lost.update(gone)
        return [one for one in deliveries if one.id in lost or newest[one.id] is not one]

    def cancellations(self, deliveries: Sequence[BullmqDelivery]) -> list[tuple[BullmqDelivery, str]]:
        ids = [one.id for one in deliveries]
        found = self._renewer_transport.run(read.get_cancellations(self.keys, ids))
        # A cancellation is for one attempt: a job that is retried, or whose id is added again, is to run.
        cancelled = [
            (one, note[1])
            for one, note in zip(deliveries, found, strict=True)
            if note is not None and note[0] == one.token
        ]
        self._renewer_transport.run_many([manage.withdraw_cancel(self.keys, one.id) for one, _ in cancelled])
        return cancelled

    async def sweep(self) -> list[str] | None:
        config, keys = self._config, self.keys
        started = time.monotonic()
        await self._scheduler_runs.resume_broken()
        now = await self.transport.now_ms()
        sweep = Sweep(self._tokens.next(), ms(config.heartbeat))
        left = await self.transport.run(
            locks.sweep_begin(keys, now_ms=now, interval_ms=config.stalled_ms, sweep=sweep)
        )
        # While the server hung, locks of live workers may have expired: what is left waits for the next sweep.
        if left < 0 or time.monotonic() - started >= config.heartbeat:
            return None
        await self._left_jobs.requeue(now)
        moved: list[str] = []
        while left > 0:
            step = locks.sweep_step(
                keys, max_stalled=config.max_stalled, suspects=SUSPECTS_PER_STEP, sweep=sweep
            )
            part, left = await self.transport.run(step)
            moved += part
        await self.transport.run(groups.sweep(keys))  # the jobs that were moved hold no slot any more
        return moved

    async def refuse_names(self, known: Sequence[str], limit: int, factor: float, /) -> RefusedNames:
        if await self._silent_workers.exist():
            return RefusedNames()
        now = await self.transport.now_ms()
        return await self.transport.run(
            name_refusals.refuse_names(self.keys, known, limit=limit, factor=factor, now_ms=now)
        )

    def publish_report(self, figures: Mapping[str, object]) -> None:
        self.known_names = publish_report(self._renewer_transport, self.keys, self._config, figures)


__all__ = [
    "LOCKS_PER_CALL",
    "SUSPECTS_PER_STEP",
    "BullmqBackend",
    "BullmqConfig",
    "BullmqDelivery",
    "ResultForwarder",
    "record_after",
]
