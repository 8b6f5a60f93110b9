"""The queues to which the bridge moves jobs.

Guarantee: a job is added once. Each target keeps a ledger of transfers, in which a job that is sent again is found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from toril.commands import add, bridge
from toril.commands.command import Command
from toril.commands.envelopes import EnvelopeToAdd
from toril.commands.once import Calls
from toril.errors import TorilError
from toril.producer._job_conversion import TransferJob, as_moved, data_of, job_id_of, options_of
from toril.producer.list_queue import ListQueue
from toril.producer.queue import Queue
from toril.producer.stream_queue import StreamQueue
from toril.transport import AsyncTransport

AnyQueue: TypeAlias = "Queue | ListQueue | StreamQueue"

# How long the ledger keeps a transfer: a move that was interrupted must be run again within this time.
TRANSFER_LEDGER_MS: Final = 24 * 3_600_000


class Target(Protocol):
    """The queue to which jobs are moved."""

    async def add_new(self, transfer_jobs: Sequence[TransferJob]) -> int:
        """Adds those that are new; returns how many."""


def target_of(source: AnyQueue, target: AnyQueue) -> Target:
    origin = source.keys.base.rstrip(":")
    if isinstance(target, Queue):
        return BullmqTarget(target, origin)
    return EnvelopeTarget(target, origin)


def transport_of(queue: AnyQueue) -> AsyncTransport:
    """Returns the transport of a queue."""
    return queue._transport  # noqa: SLF001  # not public: applications do not need it


class EnvelopeTarget:
    """A list or a stream: the ledger and the jobs are written in one call."""

    def __init__(self, queue: ListQueue | StreamQueue, origin: str) -> None:
        self._queue = queue
        self._calls = Calls(queue.keys)
        self._transport = transport_of(queue)
        self._origin = origin

    async def add_new(self, transfer_jobs: Sequence[TransferJob]) -> int:
        jobs = [
            (
                f"{self._origin} {one.transfer_id}",
                EnvelopeToAdd(as_moved(one.envelope).rewritten(), one.due_ms),
            )
            for one in transfer_jobs
        ]
        now_ms = await self._transport.now_ms()
        command = bridge.import_jobs(
            self._queue.keys, jobs, now_ms=now_ms, forget_ms=TRANSFER_LEDGER_MS, calls=self._calls
        )
        return await self._transport.run(command)


class BullmqTarget:
    """A BullMQ queue: each job is added under a ledger entry of its own."""

    def __init__(self, queue: Queue, origin: str) -> None:
        self._queue = queue
        self._transport = transport_of(queue)
        self._origin = origin

    async def add_new(self, transfer_jobs: Sequence[TransferJob]) -> int:
        await self._queue.open()
        now_ms = await self._transport.now_ms()
        known = await self._run_all([bridge.has_arrived(self._ledger(one).key) for one in transfer_jobs])
        ids = await self._free_ids(
            [one for one, is_known in zip(transfer_jobs, known, strict=True) if not is_known]
        )
        await self._run_all([self._add(one, now_ms, ids.get(one.transfer_id, "")) for one in transfer_jobs])
        return len(transfer_jobs) - sum(map(bool, known))

    async def _run_all(self, calls: Sequence[Command[Any]]) -> list[Any]:
        results = await self._transport.run_many(calls)
        for result in results:
            each = result[0] if isinstance(result, list) else result
            if isinstance(each, TorilError):
                raise each
        return results

    async def _free_ids(self, transfer_jobs: Sequence[TransferJob]) -> dict[str, str]:
        """Returns a free id for each job, by transfer id: BullMQ does not add a second job of the same id."""
        exists = await self._run_all(
            [bridge.has_arrived(self._queue.keys.job(job_id_of(one, taken=False))) for one in transfer_jobs]
        )
        ids: dict[str, str] = {}
        for transfer_job, taken in zip(transfer_jobs, exists, strict=True):
            is_used = job_id_of(transfer_job, taken=False) in ids.values()
            ids[transfer_job.transfer_id] = job_id_of(transfer_job, taken=taken or is_used)
        return ids

    def _ledger(self, transfer_job: TransferJob) -> add.Ledger:
        return add.Ledger(self._queue.keys.toril(f"arrival:{self._origin} {transfer_job.transfer_id}"), "1")

    def _add(self, transfer_job: TransferJob, now_ms: int, job_id: str) -> Command[Any]:
        envelope = as_moved(transfer_job.envelope)
        job = add.JobToAdd(
            name=envelope.task_type,
            data=data_of(envelope),
            options=options_of(envelope, transfer_job.due_ms, now_ms),
            timestamp=now_ms,
            id=job_id or envelope.job_id,  # a known job is not added
        )
        call = add.add_jobs(self._queue.keys, [job], self._ledger(transfer_job))
        # The second argument is the ledger's time to live: a move may be repeated much later than a call.
        return dataclasses.replace(call, args=(call.args[0], TRANSFER_LEDGER_MS, *call.args[2:]))
