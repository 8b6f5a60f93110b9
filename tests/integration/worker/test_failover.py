"""A primary dies under a producer and a worker that were given the sentinels' address."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.integration.worker.conftest import QUEUE
from tests.servers import Server, ValkeySentinel
from tests.waiting import until
from toril import ConnectionPolicy, Job, Queue, Worker
from toril.worker import WorkerState

ENOUGH = 60  # jobs before, and again after the failover
PACE = 0.005  # seconds between two jobs: a sentinel may take ten to agree, and nobody wants its backlog
PATIENT = ConnectionPolicy(
    command_timeout=2, call_attempts=100, reconnect_delay=0.05, max_reconnect_delay=0.2
)


@pytest.fixture
def sentinel() -> Iterator[ValkeySentinel]:
    """One of its own, as its primary dies."""
    with ValkeySentinel() as found:
        yield found


class Producer:
    """Adds numbered jobs one after another, and knows which of them the server has acknowledged."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._go = asyncio.Event()
        self._go.set()
        self._resting = asyncio.Event()
        self._over = False
        self.acknowledged: list[int] = []
        self.begun = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._over:
            if not self._go.is_set():
                self._resting.set()
                await self._go.wait()
                continue
            number, self.begun = self.begun, self.begun + 1
            await self._queue.add("n", {"number": number})
            self.acknowledged.append(number)
            await asyncio.sleep(PACE)

    async def rests(self) -> None:
        self._resting.clear()
        self._go.clear()
        await self._resting.wait()

    def goes_on(self) -> None:
        self._go.set()

    async def has(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.acknowledged) >= count

        await until(enough, f"{count} jobs are acknowledged")

    async def ends(self) -> None:
        self._over = True
        self._go.set()
        await self._task


async def until_the_replica_has_it_all(primary: Server) -> None:
    def offsets() -> tuple[int, int]:
        with primary.client() as client:
            told = client.info("replication")
        return int(told["master_repl_offset"]), int(told["slave0"]["offset"])

    async def equal() -> bool:
        ours, theirs = await asyncio.to_thread(offsets)
        return ours == theirs

    await until(equal, "the replica has all")


async def until_another_is_primary(sentinel: ValkeySentinel, before: int) -> None:
    async def promoted() -> bool:
        return await asyncio.to_thread(sentinel.primary_port) != before

    await until(promoted, "the replica was promoted")


@pytest.mark.parametrize("how", ["it dies", "it is demoted"])
async def test_a_failover_under_load_loses_nothing_that_the_replica_had(
    sentinel: ValkeySentinel, prefix: str, how: str
) -> None:
    done: Counter[int] = Counter()
    back = asyncio.Event()

    async def handle(job: Job) -> None:
        await asyncio.sleep(0.002)
        done[job.data["number"]] += 1

    worker = Worker(
        QUEUE, handle, redis=sentinel.url, prefix=prefix, concurrency=4, policy=PATIENT,
        drain_delay=0.2, lock_duration=1, stalled_check_interval=0.3, max_stalled_count=10,
    )  # fmt: skip
    worker.on("reconnected", lambda _: back.set())
    async with Queue(QUEUE, redis=sentinel.url, prefix=prefix, policy=PATIENT) as queue, worker:
        producer = Producer(queue)
        await producer.has(ENOUGH)
        await producer.rests()
        await until_the_replica_has_it_all(sentinel.primary)
        safe = set(producer.acknowledged)
        before = sentinel.primary_port()
        producer.goes_on()
        await producer.has(len(safe) + 5)
        await asyncio.to_thread(sentinel.primary.kill if how == "it dies" else sentinel.fail_over)
        await until_another_is_primary(sentinel, before)
        later = producer.begun + 1  # whatever begins from here on is answered by the new primary
        await producer.has(later + ENOUGH)
        await producer.ends()
        await asyncio.wait_for(worker.run_until_idle(), 30)
        assert worker.state is WorkerState.RUNNING
        assert (await queue.get_job_counts()).failed == 0
    assert back.is_set() or how == "it is demoted"  # which may pass between two calls
    missing = set(producer.acknowledged) - set(done)
    assert not missing & safe
    assert not [number for number in missing if number >= later]


async def test_an_idle_worker_takes_jobs_from_the_new_primary(sentinel: ValkeySentinel, prefix: str) -> None:
    async with (
        Queue(QUEUE, redis=sentinel.url, prefix=prefix, policy=PATIENT) as queue,
        Worker(QUEUE, lambda job: "done", redis=sentinel.url, prefix=prefix, policy=PATIENT),
    ):
        before = sentinel.primary_port()
        await asyncio.to_thread(sentinel.primary.kill)
        await until_another_is_primary(sentinel, before)
        job = await queue.add("n", {})
        assert await job.wait_until_finished(timeout=20) == "done"
