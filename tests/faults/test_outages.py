"""Servers that go away, hang, forget, refuse and are killed: workers wait without fuss, come back, and lose nothing."""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conformance.kinds import KINDS, QUICK, Kind, StreamKind
from tests.faults.conftest import QUEUE
from tests.faults.proxy import Proxy
from tests.faults.worker_processes import MAX_WAIT_SECONDS, Fleet
from tests.servers import Server
from tests.waiting import wait_until
from toril import Job, ListWorker, Queue, StreamWorker, Worker
from toril.backends.base import FinishedJob, settle_and_fetch
from toril.backends.redis_stream import StreamBackend
from toril.commands import stream_worker
from toril.errors import RedisUnavailable
from toril.protocol.outcome import Completed
from toril.transport import ConnectionPolicy
from toril.worker import WorkerState

pytestmark = pytest.mark.timeout(120)
MakeFleet = Callable[..., Fleet]


async def reached(condition: Callable[[], bool], within: float = MAX_WAIT_SECONDS) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def is_longer(values: Sized, length: int) -> bool:
    return len(values) > length


def lines_about(log: Path) -> list[str]:
    return log.read_text().splitlines()


@pytest.mark.parametrize("kind", ["stream", "list with reliable pickup"])
async def test_a_worker_that_stops_asks_a_silent_server_once(
    start_valkey: Callable[..., Server], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Each question would take its time: a stop should take less than a second."""
    server = start_valkey()

    async def nothing(_: Any) -> None:
        """There are no jobs."""

    worker: StreamWorker | ListWorker
    if kind == "stream":
        worker = StreamWorker(QUEUE, nothing, redis=server.url)
    else:
        worker = ListWorker(QUEUE, nothing, redis=server.url, reliable=True)
    async with worker:
        await worker.run_until_idle()
        await asyncio.to_thread(server.freeze)
        await worker.stop()
    server.thaw()
    assert "could not deregister" not in caplog.text


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_an_idle_worker_waits_for_its_server_without_errors_and_ends_when_stopped(
    start_valkey: Callable[..., Server], fleet: MakeFleet, tmp_path: Path, how: str
) -> None:
    server, log = start_valkey(), tmp_path / "worker.log"
    crew = fleet(server.url, log=str(log), lock=30.0)
    (one,) = crew.launch()
    process = psutil.Process(one.pid)
    used = sum(process.cpu_times()[:2])
    await asyncio.to_thread(server.stop if how == "stopped" else server.freeze)
    watched = time.monotonic()
    # One that is frozen shows by a call that is not answered in time.
    await asyncio.to_thread(wait_until, lambda: "Redis disconnected" in log.read_text(), "the worker notices")
    await asyncio.to_thread(wait_until, lambda: time.monotonic() - watched > 3, "three seconds are over")
    seconds = time.monotonic() - watched
    busy = (sum(process.cpu_times()[:2]) - used) / seconds
    lines = lines_about(log)
    assert len(lines) <= 2 + 6, (
        lines
    )  # once that it is lost, and once for each pause of 0.1, 0.2, 0.4, 0.8, 1.6 s
    assert busy < 0.1, f"{busy:.0%} of a core to do nothing"
    asked = time.monotonic()
    assert await asyncio.to_thread(crew.terminate, one) == 0
    took = time.monotonic() - asked
    print(f"{how}: {len(lines)} lines, {busy:.1%} CPU, ended after {took:.2f} s")
    assert took < 3.0  # about one on a quiet machine


async def test_asyncio_does_not_complain_of_calls_that_come_while_the_connection_breaks(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey()
    policy = ConnectionPolicy(call_attempts=1)
    async with Queue(QUEUE, redis=server.url, prefix=prefix, policy=policy) as queue:
        jobs = [await queue.add("n", {}) for _ in range(30)]
        server.kill()  # all in one turn of the loop: nobody has told us yet
        ends = await asyncio.gather(*(job.get_state() for job in jobs), return_exceptions=True)
    assert all(isinstance(one, RedisUnavailable) for one in ends)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_worker_with_an_unsettled_result_retries_without_errors_until_its_time_is_over(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey()
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        begun.set()
        await release.wait()

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        await queue.add("n", {})
        worker = Worker(QUEUE, handle, redis=server.url, prefix=prefix)
        await worker.start()
        await asyncio.wait_for(begun.wait(), 10)
        await asyncio.to_thread(server.kill)
        release.set()
        with caplog.at_level(logging.WARNING, "toril.worker"):
            await asyncio.wait_for(worker.stop(timeout=2), 20)
        said = [line for line in caplog.messages if "reconnect" in line or "disconnected" in line]
        assert worker.state is WorkerState.STOPPED
        assert len(said) <= 12, said


async def test_a_server_killed_under_load_loses_nothing_that_it_had_acknowledged(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    runs: collections.Counter[str] = collections.Counter()
    added: list[str] = []
    over = asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1
        await asyncio.sleep(0.005)

    async def produce(queue: Queue) -> None:
        while not over.is_set():
            try:
                jobs = await asyncio.gather(*(queue.add("n", {}) for _ in range(5)), return_exceptions=True)
            except RedisUnavailable:
                continue
            added.extend(job.id for job in jobs if isinstance(job, Job))
            await asyncio.sleep(0.01)

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        worker = Worker(
            QUEUE, handle, redis=server.url, prefix=prefix, concurrency=5, max_reconnect_delay=0.2,
            lock_duration=2, stalled_check_interval=1, max_stalled_count=10,
        )  # fmt: skip
        async with worker:
            producing = asyncio.create_task(produce(queue))
            for _ in range(3):
                goal = len(added) + 60
                await reached(partial(is_longer, added, goal))
                server.kill()
                server.start()
            over.set()
            await producing
            await asyncio.wait_for(worker.run_until_idle(), MAX_WAIT_SECONDS)
        counts = await queue.get_job_counts()
        states = collections.Counter([await queue.get_job_state(one) for one in added])
        print(f"{len(added)} acknowledged, {runs.total() - len(runs)} repeated, {counts}")
        assert set(states) == {"completed"}
        assert runs.total() - len(runs) <= 3 * 5 * 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("end", ["within", "afterwards"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_results_survive_an_outage_that_is_longer_than_the_lock(
    start_valkey: Callable[..., Server], prefix: str, kind: type[Kind], end: str, how: str
) -> None:
    """Locks run out on both of two workers; each retakes its own before anybody sweeps."""
    server = start_valkey(appendonly="yes", appendfsync="always")
    runs: collections.Counter[str] = collections.Counter()
    release = asyncio.Event()
    trouble: list[Any] = []

    async def handle(job: Any) -> None:
        runs[kind.payload(job)["n"]] += 1
        await release.wait()

    async with kind(server.url, prefix).opened() as queue:
        await queue.add_many([{"n": str(n)} for n in range(10)])
        workers = [queue.worker(handle, concurrency=5, max_reconnect_delay=0.2) for _ in range(2)]
        for worker in workers:
            worker.on("lock_lost", trouble.append)
            await worker.start()
        await reached(lambda: runs.total() == 10)
        await asyncio.to_thread(server.kill if how == "killed" else server.freeze)
        if end == "within":
            release.set()
        await asyncio.sleep(1.5 * QUICK["lock_duration"])
        renewers = [worker._lifecycle._runtime.lock_renewer for worker in workers]
        counts = [one.renewed for one in renewers]
        server.start() if how == "killed" else server.thaw()
        if end == "afterwards":
            await reached(lambda: all(one.renewed > old for one, old in zip(renewers, counts, strict=True)))
            release.set()
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            await asyncio.gather(*(worker.run_until_idle() for worker in workers))
        for worker in workers:
            await worker.stop()
        assert runs == collections.Counter(str(n) for n in range(10))
        assert sum(worker.processed for worker in workers) == 10
        assert trouble == []
        assert await queue.unfinished() == 0


@pytest.mark.parametrize("call", [b":toril:broken", b":stalled-check"])
async def test_a_sweep_that_a_hanging_server_held_up_takes_no_job(
    under_attack: Queue, valkey: Server, bad_network: Proxy, prefix: str, call: bytes
) -> None:
    """Locks may have run out while the server hung, also those of workers that live."""
    worker = Worker(QUEUE, lambda _: None, redis=bad_network.url, prefix=prefix, lock_duration=1)
    source = worker._adapter.make_backend()
    await source.open()
    try:
        job = await under_attack.add("n", {})
        assert len((await settle_and_fetch(source, [], 1)).deliveries) == 1
        assert await source.sweep() == []
        with valkey.client() as client:
            client.delete(under_attack.keys.lock(job.id), under_attack.keys.stalled_check)
        fault = bad_network.arm("delay", call, seconds=2 * float(worker.options.heartbeat_interval))
        assert await source.sweep() is None
        assert fault.struck.is_set()
        assert await job.get_state() == "active"
        assert await source.sweep() == [job.id]
    finally:
        await source.close()
        await worker._adapter.close()


async def test_a_stream_worker_that_comes_back_claims_nothing_before_others_could_renew(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    """Its last sweep allowed it to claim as soon as it has capacity; then the server was away for long."""
    server = start_valkey(appendonly="yes", appendfsync="always")
    running, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        running.set()
        await release.wait()

    async with StreamKind(server.url, prefix).opened() as queue, queue.manual_backend() as other:
        assert isinstance(other, StreamBackend)
        await queue.add_many([{"n": 1}])
        (held,) = (await settle_and_fetch(other, [], 1)).deliveries
        await queue.add_many([{"n": 2}])
        times: dict[str, Any] = {
            "lock_duration": 8,
            "heartbeat_interval": 4,
            "claim_idle": 8,
            "stalled_check_interval": 0.05,
        }
        async with queue.worker(handle, concurrency=1, max_reconnect_delay=0.1, **times) as worker:
            await running.wait()
            runtime = worker._lifecycle._runtime
            assert isinstance(runtime.backend, StreamBackend)
            runtime.backend._may_recover = True  # as a sweep leaves it that finds the worker busy
            server.kill()
            runtime.lock_renewer.renew_soon()
            await reached(lambda: runtime.lock_renewer.failed > 0)
            server.start()
            with server.client() as client:
                keys = queue.queue.keys
                client.xclaim(keys.stream, keys.consumer_group, other._config.consumer, 0, [held.reference],
                              idle=60_000, retrycount=1, justid=True)  # fmt: skip
            release.set()
            await reached(lambda: worker.processed >= 1)
            assert other.renew_locks([held]) == []
            await settle_and_fetch(other, [FinishedJob(held, Completed())], 0)


async def test_a_claim_that_a_hanging_server_held_up_takes_no_entry(valkey: Server, prefix: str) -> None:
    async with (
        StreamKind(valkey.url, prefix).opened() as queue,
        queue.manual_backend() as dead,
        queue.manual_backend() as living,
    ):
        await queue.add_many([{"n": 1}])
        (held,) = (await settle_and_fetch(dead, [], 1)).deliveries
        assert isinstance(living, StreamBackend)
        terms, transport = living._config, living.transport
        how: dict[str, Any] = {
            "consumer": terms.consumer,
            "idle_ms": 0,
            "own_idle_ms": 0,
            "cursor": "0-0",
            "limit": 1,
        }
        for late in (1, -60_000):
            until = await transport.now_ms() - late
            claimed = await transport.run(
                stream_worker.claim(living.keys, **how, until_ms=until, unsettled=[], running=[])
            )
            assert [one.reference for one in claimed.jobs] == ([] if late > 0 else [held.reference])
            assert not claimed.more or late < 0


REFUSALS = {
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "BUSY": b"-BUSY Redis is busy running a script.\r\n",
    "MASTERDOWN": b"-MASTERDOWN Link with MASTER is down.\r\n",
    "CLUSTERDOWN": b"-CLUSTERDOWN The cluster is down\r\n",
    "TRYAGAIN": b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
    "MISCONF": b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
    "NOREPLICAS": b"-NOREPLICAS Not enough good replicas to write.\r\n",
    "OOM": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "NOSCRIPT": b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
    "max clients": b"-ERR max number of clients reached\r\n",
    "unknown": b"-ERR something nobody has heard of\r\n",
}


@pytest.mark.parametrize("word", REFUSALS)
async def test_a_worker_outlives_every_refusal_and_runs_each_job_once(
    under_attack: Queue, bad_network: Proxy, prefix: str, word: str
) -> None:
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1
        if runs.total() in (3, 4, 8):
            bad_network.arm("answer", f"{prefix}:{QUEUE}:wait".encode(), reply=REFUSALS[word])

    jobs = await under_attack.add_bulk([("n", {}) for _ in range(12)])
    async with Worker(
        QUEUE,
        handle,
        redis=bad_network.url,
        prefix=prefix,
        concurrency=2,
        reconnect_delay=0.01,
        max_reconnect_delay=0.1,
    ) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 20)
        assert worker.state is WorkerState.RUNNING
    assert runs == collections.Counter(job.id for job in jobs)
    assert (await under_attack.get_job_counts()).completed == 12


async def test_a_server_that_forgets_its_scripts_ten_times_a_second_causes_no_error(
    under_attack: Queue, valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    forgotten: list[float] = []

    def forget() -> None:
        with valkey.client() as client:
            while not over.wait(0.1):
                client.script_flush()
                forgotten.append(time.monotonic())

    async def handle(job: Job[Any]) -> None:
        await job.update_progress(50)
        await job.log("half way")

    flushing = threading.Thread(target=forget)
    flushing.start()
    try:
        with caplog.at_level(logging.WARNING, "toril"):
            async with Worker(
                QUEUE,
                handle,
                redis=valkey.url,
                prefix=prefix,
                concurrency=10,
                lock_duration=0.4,
                stalled_check_interval=0.2,
            ) as worker:
                for turn in range(20):
                    await reached(partial(is_longer, forgotten, turn))
                    await under_attack.add_bulk([("n", {}) for _ in range(50)])
                    await asyncio.wait_for(worker.run_until_idle(), 20)
    finally:
        over.set()
        flushing.join()
    counts = await under_attack.get_job_counts()
    assert (counts.completed, counts.failed, caplog.messages) == (1000, 0, [])


async def test_sigterm_in_the_middle_of_an_outage_and_a_return_lose_nothing(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    """The results in hand are delivered when the server comes back within the time that a stop leaves."""
    server = start_valkey(appendonly="yes", appendfsync="always")
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any]) -> str:
        begun.set()
        await release.wait()
        return "done"

    async with Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        job = await queue.add("n", {})
        worker = Worker(QUEUE, handle, redis=server.url, prefix=prefix)
        disconnected = asyncio.Event()
        worker.on("disconnected", lambda _: disconnected.set())
        await worker.start()
        await asyncio.wait_for(begun.wait(), 10)
        await asyncio.to_thread(server.kill)
        release.set()
        await asyncio.wait_for(disconnected.wait(), 10)
        stopping = asyncio.create_task(worker.stop(timeout=10))
        await reached(lambda: worker.state is WorkerState.SHUTTING_DOWN)
        assert not stopping.done()
        server.start()
        await asyncio.wait_for(stopping, 15)
        assert await job.get_state() == "completed"
