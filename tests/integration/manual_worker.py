"""A worker that a test operates: takes jobs and ends them step by step, for tests of other packages."""

from __future__ import annotations

import json
from typing import Any, Self

from toril.commands.worker import Pickup, Settlement, finish_options, packed_fields, settle
from toril.jobs import Job, JobCalls
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport


class ManualWorker:
    """One worker with one lock token, on the queue of `keys`."""

    def __init__(self, url: str, keys: QueueKeys, *, lock_ms: int = 30_000) -> None:
        self.transport = AsyncTransport(url)
        self.keys = keys
        self.calls = JobCalls(self.transport, keys)
        self._pickup = Pickup(token="manual", lock_ms=lock_ms, worker="manual")

    async def take(self) -> Job[Any]:
        """The next job; there must be one."""
        reply = await self._settle([], take=1)
        assert reply.jobs, "no job was ready"
        job_id, flat = reply.jobs[0]
        return Job(JobRecord.from_flat(job_id, flat), self.calls, token="manual")

    async def complete(self, job: Job[Any], value: Any = None) -> None:
        await self._end(job, "completed", json.dumps(value), {})

    async def fail(self, job: Job[Any], reason: str = "it broke", trace: str = "a trace") -> None:
        fields = {"failedReason": reason, "stacktrace": json.dumps([trace])}
        await self._end(job, "failed", reason, fields)

    async def _end(self, job: Job[Any], kind: Any, value: str, fields: dict[str, str]) -> None:
        removal = job.opts.get("removeOnComplete" if kind == "completed" else "removeOnFail")
        options = finish_options(
            pickup=self._pickup,
            token="manual",
            keep={"count": 0} if removal is True else {"count": -1},
            attempts=job.max_attempts,
        )
        settlement = Settlement(
            job_id=job.id,
            kind=kind,
            token="manual",
            value=value,
            options=options,
            fields=packed_fields(fields),
        )
        reply = await self._settle([settlement], take=0)
        assert reply.ack_errors == [None]

    async def _settle(self, settlements: list[Settlement], *, take: int) -> Any:
        now_ms = await self.transport.now_ms()
        return await self.transport.run(
            settle(self.keys, settlements, capacity=take, pickup=self._pickup, now_ms=now_ms)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.calls.close()
        await self.transport.close()
