"""`ManualWorker` for code without an event loop: the same names, blocking."""

from __future__ import annotations

import functools
from typing import Any, Unpack

from toril.jobs import BlockingJob, BlockingJobCalls
from toril.jobs import Job as AsyncJob
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.duration import Duration
from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict
from toril.sync._facade import Facade
from toril.transport import BlockingTransport, ConnectionPolicy
from toril.worker import ManualWorker as AsyncManualWorker


class ManualWorker(Facade[AsyncManualWorker]):
    """Fetches jobs of a BullMQ queue for a loop of yours, blocking."""

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
        made = functools.partial(
            AsyncManualWorker,
            name,
            prefix=prefix,
            hash_tag=hash_tag,
            policy=policy,
            options=options,
            **fields,
        )
        super().__init__(made, redis)
        self._calls = BlockingJobCalls(
            BlockingTransport(self.address, policy=policy), self.keys, codecs=self.options.queue_codecs
        )
        self._jobs: dict[str, AsyncJob] = {}  # fetched and not settled, by id

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def keys(self) -> QueueKeys:
        return self._inner.keys

    @property
    def options(self) -> WorkerOptions:
        return self._inner.options

    async def _begin(self) -> None:
        await self._inner.open()

    async def _end(self) -> None:
        await self._inner.close()

    def open(self) -> None:
        """Connects. Entering does it, and so does the first call."""
        self._call(self._inner.open)

    def close(self) -> None:
        """Puts jobs back that were fetched and not settled, and closes the connections. May be called twice."""
        super().close()
        self._calls.transport.close()

    def get_next_job(self, *, wait: Duration = 0) -> BlockingJob | None:
        """Fetches the next job, for up to `wait`; None when there is none, or a limit or pause holds jobs back."""
        return self._blocking(self._call(self._inner.get_next_job, wait=wait))

    def complete(
        self, job: BlockingJob, result: Any = None, *, fetch_next: bool = False
    ) -> BlockingJob | None:
        """Completes a job with its result; returns the next job if asked, fetched in the same step."""
        taken = self._taken(job)
        return self._blocking(self._call(self._inner.complete, taken, result, fetch_next=fetch_next))

    def fail(
        self, job: BlockingJob, error: BaseException | str, *, fetch_next: bool = False
    ) -> BlockingJob | None:
        """Ends a failed attempt: the job is retried or fails, as a `Worker` decides for the same error."""
        taken = self._taken(job)
        return self._blocking(self._call(self._inner.fail, taken, error, fetch_next=fetch_next))

    def delay(self, job: BlockingJob, delay: Duration) -> None:
        """Puts a job off by `delay`; the attempt is not counted."""
        self._call(self._inner.delay, self._taken(job), delay)

    def put_back(self, job: BlockingJob) -> None:
        """Puts a job back into the queue, to be fetched at once; the attempt is not counted."""
        self._call(self._inner.put_back, self._taken(job))

    def extend_lock(self, job: BlockingJob, duration: Duration | None = None) -> None:
        """Renews the lock of a job for `duration`, `lock_duration` by default; raises `LockLost` when it is lost."""
        held: Any = self._jobs.get(job.id, job)
        self._call(self._inner.extend_lock, held, duration)

    def recover_stalled(self) -> list[str]:
        """Returns stalled jobs to the queue, as workers do regularly; returns their ids."""
        return self._call(self._inner.recover_stalled)

    def _blocking(self, job: AsyncJob | None) -> BlockingJob | None:
        if job is None:
            return None
        self._jobs[job.id] = job
        return BlockingJob(job.record, self._calls, job.token)

    def _taken(self, job: BlockingJob) -> Any:
        """The job of the event loop; one that is unknown is refused there."""
        held = self._jobs.get(job.id)
        return self._jobs.pop(job.id) if held is not None and held.token == job.token else job
