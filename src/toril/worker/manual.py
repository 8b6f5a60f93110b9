"""`ManualWorker`: fetches and settles jobs one by one, for programs that have a loop of their own.

Guarantee: a job that was fetched is settled once; an outcome that the queue refuses is raised. Nothing happens between
two calls: locks are renewed by `extend_lock`, and stalled jobs are recovered by `recover_stalled`, or by other workers.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Final, Self, Unpack, cast

from toril.backends.base import FinishedJob, settle_and_fetch
from toril.backends.bullmq import BullmqBackend, BullmqDelivery
from toril.codecs.in_loop import encoded
from toril.errors import Closed, LockLapsed, LockLost, TorilError
from toril.jobs import Job
from toril.protocol.backoff import call_backoff
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_options
from toril.protocol.outcome import (
    Completed,
    Outcome,
    Postponed,
    Requeued,
    Undecided,
    decide_outcome,
)
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict, new_worker_id
from toril.transport import ConnectionPolicy, parse_address
from toril.worker._bullmq_adapter import BullmqAdapter
from toril.worker._handlers import options_of
from toril.worker._reconnect import policy_of

# How often an outcome is sent again when the lock had expired and could be taken again.
_RETAKES: Final = 2


@knows_its_options("an argument of ManualWorker")
class ManualWorker:
    """Fetches jobs of a BullMQ queue for a loop of yours.

    async with ManualWorker("emails") as worker:
        while (job := await worker.get_next_job(wait=5)) is not None:
            await worker.complete(job, await send(job.data))

    A job must be settled within `lock_duration`, or its lock extended: then it counts as stalled. The options are those
    of `Worker`, as far as they do not concern handlers.
    """

    def __init__(
        self,
        name: str,
        *,
        redis: object = None,
        prefix: str = BULLMQ_PREFIX,
        hash_tag: bool | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        self.options = options_of(options, fields, type(self))
        address = parse_address(redis)
        self.keys = QueueKeys(name, prefix, hash_tag=hash_tag).resolve(cluster=address.is_cluster)
        self.id = self.options.worker_id or new_worker_id()
        own_policy = policy_of(self.options, policy)
        self._adapter = BullmqAdapter(self.keys, address, own_policy, self.options, self.id)
        self._encode = self._adapter.encoder()
        self._backend: BullmqBackend | None = None
        self._held: dict[str, BullmqDelivery] = {}

    # --- opening and closing --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects. Entering does it, and so does the first call."""
        if self._backend is None:
            backend = self._adapter.make_backend(("*",))
            try:
                await backend.open()
            except BaseException:
                await backend.close()
                await self._adapter.close()
                raise
            self._backend = backend

    async def close(self) -> None:
        """Puts jobs back that were fetched and not settled, and closes the connections. May be called twice."""
        backend = self._backend
        if backend is None:
            return
        held, self._held = list(self._held.values()), {}
        try:
            if held:
                returned = [FinishedJob(one, _outcome_of_return(one.id)) for one in held]
                await settle_and_fetch(backend, returned, 0)
        finally:
            self._backend = None
            await backend.close()
            await self._adapter.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _opened(self) -> BullmqBackend:
        await self.open()
        if self._backend is None:
            raise Closed("the worker was closed; make a new ManualWorker")
        return self._backend

    # --- fetching -------------------------------------------------------------------------------------------

    async def get_next_job(self, *, wait: Duration = 0) -> Job | None:
        """Fetches the next job, for up to `wait`; None when there is none, or a limit or pause holds jobs back.

        The job is active and locked for `lock_duration`.
        """
        backend = await self._opened()
        until = time.monotonic() + to_seconds("wait", wait)
        while True:
            fetched = await settle_and_fetch(backend, (), 1)
            if fetched.deliveries:
                return self._keep_delivery(fetched.deliveries[0])
            left = until - time.monotonic()
            if left <= 0:
                return None
            soonest = fetched.limited_for or fetched.next_due_in
            await backend.wait(max(0.001, min(left, soonest or left, float(self.options.drain_delay))))

    def _keep_delivery(self, delivery: BullmqDelivery) -> Job:
        self._held[delivery.id] = delivery
        return cast("Job", self._adapter.job_for_callbacks(delivery, False))

    # --- settling -------------------------------------------------------------------------------------------

    async def complete(self, job: Job, result: object = None, *, fetch_next: bool = False) -> Job | None:
        """Completes a job with its result; returns the next job if asked, fetched in the same step."""
        json, codecs = self._encode(result), self._adapter.codecs
        if json is not None and codecs is not None:
            json = await encoded(codecs, job.name, json, "result")
        return await self._settle(job, Completed(json), fetch_next)

    async def fail(self, job: Job, error: BaseException | str, *, fetch_next: bool = False) -> Job | None:
        """Ends a failed attempt: the job is retried or fails, as a `Worker` decides for the same error.

        A text is an error of unknown kind. Returns the next job if asked, fetched in the same step.
        """
        problem = error if isinstance(error, BaseException) else RuntimeError(error)
        return await self._settle(job, await self._outcome_of(job, problem), fetch_next)

    async def delay(self, job: Job, delay: Duration) -> None:
        """Puts a job off by `delay`; the attempt is not counted."""
        await self._settle(job, Postponed(to_seconds("delay", delay)), False)

    async def put_back(self, job: Job) -> None:
        """Puts a job back into the queue, to be fetched at once; the attempt is not counted."""
        await self._settle(job, _outcome_of_return(job.id), False)

    async def extend_lock(self, job: Job, duration: Duration | None = None) -> None:
        """Renews the lock of a job for `duration`, `lock_duration` by default; raises `LockLost` when it is lost."""
        self._delivery(job)
        await job.extend_lock(self.options.lock_duration if duration is None else duration)

    async def recover_stalled(self) -> list[str]:
        """Returns stalled jobs to the queue, as workers do regularly; returns their ids. A job is found by two calls
        that are `stalled_check_interval` apart."""
        return await (await self._opened()).sweep() or []

    def _delivery(self, job: Job) -> BullmqDelivery:
        held = self._held.get(job.id)
        if held is None or held.token != job.token:
            raise LockLost(job.id, hint="this worker did not fetch the job, or has settled it")
        return held

    async def _outcome_of(self, job: Job, error: BaseException) -> Outcome:
        delivery = self._delivery(job)
        outcome = decide_outcome(
            error,
            attempts_made=delivery.attempts_made,
            max_attempts=delivery.max_attempts,
            backoff=self._adapter.backoff_of(delivery),
            options=self.options,
        )
        if not isinstance(outcome, Undecided):
            return outcome
        delay = call_backoff(outcome.function, outcome.attempts_made, outcome.error, job)
        return outcome.decided(await delay if isinstance(delay, Awaitable) else delay)

    async def _settle(self, job: Job, outcome: Outcome, fetch_next: bool) -> Job | None:
        backend, delivery = await self._opened(), self._delivery(job)
        del self._held[job.id]
        refused: TorilError | None = None
        for _ in range(_RETAKES):
            fetched = await settle_and_fetch(backend, [FinishedJob(delivery, outcome)], int(fetch_next))
            refused = fetched.ack_errors[0] if fetched.ack_errors else None
            if not isinstance(refused, LockLapsed):
                break
        if refused is not None:
            raise refused
        return self._keep_delivery(fetched.deliveries[0]) if fetched.deliveries else None


def _outcome_of_return(job_id: str) -> Requeued:
    return Requeued(f"job {job_id} is put back")
