"""Servers that cannot write, keys that are not what they should be, workers that a busy machine held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.kinds import Kind, ListKind, ReliableListKind, StreamKind
from tests.servers import Server
from toril import PermanentError, TransientError
from toril.backends.base import settle_and_fetch
from toril.backends.redis_list import ListBackend
from toril.commands import list_worker

KINDS = (ListKind, ReliableListKind, StreamKind)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_retry_and_a_dead_letter_that_a_full_server_refuses_are_written_when_it_has_memory(
    make: Any, start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    runs: list[str] = []
    full = asyncio.Event()
    async with make(server.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            runs.append(job.name)
            await full.wait()
            if job.name == "dies":
                raise PermanentError("never")
            if runs.count("again") == 1:
                raise TransientError("not yet")

        await kind.add("again")
        await kind.add("dies")
        async with kind.worker(handle, concurrency=2) as worker:
            await until(lambda: _is(len(runs) == 2))
            with server.client() as client:
                client.config_set("maxmemory", 1)
                full.set()
                await until(lambda: _is(len(worker._lifecycle._runtime.backend._unwritten) == 2))
                client.config_set("maxmemory", 0)
            await until(lambda: _is(runs.count("again") == 2))
            await until(lambda: _no_more(kind))
        assert [failed_job.reason for failed_job in await kind.failed_jobs()] == ["PermanentError: never"]
    assert sorted(runs) == ["again", "again", "dies"]


async def test_a_stop_waits_for_a_full_server_to_take_a_job_back(
    make: Any, start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    begun = asyncio.Event()
    async with make(server.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        await kind.add()
        worker = kind.worker(handle)
        await worker.start()
        with server.client() as client:
            await begun.wait()
            client.config_set("maxmemory", 1)
            stopping = asyncio.create_task(worker.stop(timeout=0))
            # An entry of a stream keeps its place, which takes no memory.
            await until(lambda: _is(worker._lifecycle._runtime.backend._unwritten or stopping.done()))
            client.config_set("maxmemory", 0)
            await stopping
        assert await kind.unfinished() == 1
        assert (await kind.queue.counts()).active == 0


async def test_an_outcome_that_can_never_be_written_is_named_in_the_log(
    make: Any,
    start_valkey: Callable[..., Server],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("toril.backends._unwritten.CLOSE_ATTEMPTS", 1)
    server = start_valkey(maxmemory_policy="noeviction")
    begun, full = asyncio.Event(), asyncio.Event()
    async with make(server.url, prefix).opened() as kind:

        async def handle(job: Any) -> None:
            begun.set()
            await full.wait()
            raise PermanentError("never")

        job_id = await kind.add()
        worker = kind.worker(handle)
        await worker.start()
        await begun.wait()
        with server.client() as client:
            client.config_set("maxmemory", 1)
            full.set()
            await until(lambda: _is(worker._lifecycle._runtime.backend._unwritten))
            async with asyncio.timeout(20):
                await worker.stop(timeout=0)
    assert f"job {job_id}: its outcome (dead) could not be written" in caplog.text


async def test_a_sorted_set_that_is_none_keeps_no_job_from_its_worker(
    make: Any, valkey: Server, prefix: str
) -> None:
    seen: list[int] = []

    async def handle(job: Any) -> None:
        seen.append(job.payload["n"])

    async with make(valkey.url, prefix).opened() as kind:
        with valkey.client() as client:
            client.set(kind.queue.keys.scheduled, "somebody else's")
        await kind.add_many([{"n": n} for n in range(3)])
        async with kind.worker(handle, concurrency=3):
            await until(lambda: _is(len(seen) == 3))
    assert sorted(seen) == [0, 1, 2]


async def test_a_job_that_is_never_due_keeps_no_other_from_its_worker(
    make: Any, valkey: Server, prefix: str
) -> None:
    seen: list[int] = []

    async def handle(job: Any) -> None:
        seen.append(job.payload["n"])

    async with make(valkey.url, prefix).opened() as kind:
        with valkey.client() as client:
            client.zadd(kind.queue.keys.scheduled, {"somebody else's": float("inf")})
        await kind.add_many([{"n": n} for n in range(3)])
        async with kind.worker(handle):
            await until(lambda: _is(len(seen) == 3))
        ((envelope, _),) = await kind.queue.scheduled()
        assert envelope.task_type == "unreadable"
    assert seen == [0, 1, 2]


async def test_a_worker_that_was_held_up_does_not_take_itself_for_dead(server_url: str, prefix: str) -> None:
    async with ReliableListKind(server_url, prefix).opened() as kind:
        await kind.add()
        async with kind.manual_backend() as backend:
            assert isinstance(backend, ListBackend)
            assert len((await settle_and_fetch(backend, [], 1)).deliveries) == 1
            keys, silence = kind.queue.keys, 1000
            later = await backend.transport.now_ms() + 10 * silence
            for consumer, found in ((backend._consumer, 0), ("another", 1)):
                recover = list_worker.recover(
                    keys, consumer=consumer, now_ms=later, silence_ms=silence, limit=10
                )
                texts, _ = await backend.transport.run(recover)
                assert len(texts) == found
                later += 10 * silence


async def _is(value: object) -> bool:
    return bool(value)


async def _no_more(kind: Kind) -> bool:
    return not await kind.unfinished()
