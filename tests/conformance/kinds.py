"""The kinds of queue under one interface, so that one suite tests the same guarantees for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from toril import Backoff, Envelope, ListQueue, ListWorker, Queue, StreamQueue, StreamWorker, Worker
from toril.backends.base import Backend
from toril.protocol.worker_options import RateLimit
from toril.worker.base_worker import BaseWorker

# Short enough for a test that waits for a recovery, long enough for a busy machine to renew in time.
QUICK = {
    "lock_duration": 1.0,
    "heartbeat_interval": 0.2,
    "stalled_check_interval": 0.25,
    "backoff_delay": 0,
    "drain_delay": 0.2,
}


@dataclass(frozen=True)
class FailedJob:
    """A job that failed permanently."""

    job_id: str
    payload: Any
    reason: str


class Kind:
    """One kind of queue on one server, under one prefix."""

    name: str
    at_least_once = True
    limited: ClassVar[Mapping[str, Any]] = {}  # what a worker must be given before a job may pause the queue

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.queue: Any = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Kind]:
        async with self._make_queue() as self.queue:
            yield self

    def _make_queue(self) -> Any:
        raise NotImplementedError

    def worker(self, handler: Any, **options: Any) -> BaseWorker[Any]:
        raise NotImplementedError

    async def add(
        self, name: str = "task", payload: Any = None, *, attempts: int = 3, delay: float | None = None
    ) -> str:
        raise NotImplementedError

    async def add_many(self, payloads: list[Any], *, attempts: int = 3) -> None:
        for payload in payloads:
            await self.add("task", payload, attempts=attempts)

    async def add_poison(self) -> None:
        """A message that cannot be read."""
        raise NotImplementedError

    async def failed_jobs(self) -> list[FailedJob]:
        raise NotImplementedError

    async def unfinished(self) -> int:
        """Jobs that wait, are active, or are scheduled."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def manual_backend(self) -> AsyncIterator[Backend[Any]]:
        """The backend of a worker that the test operates; at the end it dies and gives nothing back."""
        worker = self.worker(lambda job: None)
        backend: Any = worker._adapter.make_backend()
        await backend.open()
        try:
            yield backend
        finally:
            await backend.transport.close()
            await worker._adapter.close()

    @staticmethod
    def payload(job: Any) -> Any:
        return job.payload if isinstance(job, Envelope) else job.data


class BullmqKind(Kind):
    name = "bullmq"
    limited: ClassVar[Mapping[str, Any]] = {"rate_limit": RateLimit(1000, 1.0)}

    def _make_queue(self) -> Any:
        return Queue("work", redis=self.url, prefix=self.prefix)

    def worker(self, handler: Any, **options: Any) -> BaseWorker[Any]:
        return Worker("work", handler, redis=self.url, prefix=self.prefix, **{**QUICK, **options})

    async def add(
        self, name: str = "task", payload: Any = None, *, attempts: int = 3, delay: float | None = None
    ) -> str:
        more = {} if delay is None else {"delay": delay}
        data = {} if payload is None else payload
        job = await self.queue.add(name, data, attempts=attempts, backoff=Backoff.fixed(0.001), **more)
        return str(job.id)

    async def add_poison(self) -> None:
        job = await self.queue.add("task", {}, attempts=3)
        with client_of(self.url) as client:
            client.hset(self.queue.keys.job(job.id), "data", "{this is not JSON")

    async def failed_jobs(self) -> list[FailedJob]:
        jobs = await self.queue.get_jobs(["failed"])
        return [FailedJob(job.id, _data(job), job.failed_reason or "") for job in jobs]

    async def unfinished(self) -> int:
        counts = await self.queue.get_job_counts()
        return int(counts.waiting + counts.active + counts.delayed + counts.prioritized)


def _data(job: Any) -> Any:
    try:
        return job.data
    except Exception:  # noqa: BLE001  # poison stays poison when it is looked at
        return None


class _EnvelopeKind(Kind):
    async def add(
        self, name: str = "task", payload: Any = None, *, attempts: int = 3, delay: float | None = None
    ) -> str:
        envelope = await self.queue.add(name, payload, max_attempts=attempts, delay=delay)
        return str(envelope.job_id)

    async def add_many(self, payloads: list[Any], *, attempts: int = 3) -> None:
        await self.queue.add_bulk([("task", payload) for payload in payloads], max_attempts=attempts)

    async def failed_jobs(self) -> list[FailedJob]:
        return [
            FailedJob(letter.job_id, letter.envelope.payload, letter.last_error)
            async for letter in self.queue.dead_letters()
        ]

    async def unfinished(self) -> int:
        return int(await self.queue.pending())


class ListKind(_EnvelopeKind):
    name = "list"
    at_least_once = False
    reliable = False

    def _make_queue(self) -> Any:
        return ListQueue("jobs.work", redis=self.url, prefix=self.prefix, env="test")

    def worker(self, handler: Any, **options: Any) -> BaseWorker[Any]:
        place: dict[str, Any] = {
            "redis": self.url,
            "prefix": self.prefix,
            "env": "test",
            "reliable": self.reliable,
        }
        return ListWorker("jobs.work", handler, **place, **{**QUICK, **options})

    async def add_poison(self) -> None:
        with client_of(self.url) as client:
            client.lpush(self.queue.keys.queue, b"{this is not JSON")


class ReliableListKind(ListKind):
    name = "reliable list"
    at_least_once = True
    reliable = True


class StreamKind(_EnvelopeKind):
    name = "stream"

    def _make_queue(self) -> Any:
        return StreamQueue("jobs.work", redis=self.url, prefix=self.prefix, env="test")

    def worker(self, handler: Any, **options: Any) -> BaseWorker[Any]:
        place: dict[str, Any] = {"redis": self.url, "prefix": self.prefix, "env": "test", "claim_idle": 1.0}
        return StreamWorker("jobs.work", handler, **{**place, **QUICK, **options})

    async def add_poison(self) -> None:
        with client_of(self.url) as client:
            client.xadd(self.queue.keys.stream, {"envelope": "{this is not JSON"})


KINDS = (BullmqKind, ListKind, ReliableListKind, StreamKind)


@contextlib.contextmanager
def client_of(url: str) -> Iterator[Any]:
    """A plain client, for what no queue would do."""
    import redis
    from redis.cluster import ClusterNode, RedisCluster

    if url.startswith("redis+cluster://"):
        host, _, port = url.removeprefix("redis+cluster://").split(",")[0].partition(":")
        client: Any = RedisCluster(startup_nodes=[ClusterNode(host, int(port))])
    else:
        client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()
