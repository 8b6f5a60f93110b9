"""List and stream queues, and blocking queues, with codecs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.codecs import codec_handlers
from tests.integration.codecs.keys import OTHER_KEY
from tests.integration.codecs.test_encoded_jobs import DATA, SECRET, encrypted, keyspace
from tests.servers import Server
from toril import Envelope, FlowNode, ListQueue, ListWorker, StreamQueue, StreamWorker, sync
from toril.codecs import AesGcm, Codecs, Zstd


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_list_and_stream_queues_have_encoded_payloads_and_results(
    valkey: Server, prefix: str, kind: str
) -> None:
    codecs = encrypted()
    options: Any = {"redis": valkey.url, "prefix": prefix, "codecs": codecs}
    make_queue: Callable[..., Any] = ListQueue if kind == "list" else StreamQueue
    make_worker: Callable[..., Any] = ListWorker if kind == "list" else StreamWorker
    seen: asyncio.Queue[Any] = asyncio.Queue()

    async def handle(envelope: Envelope) -> Any:
        if envelope.attempts == 0:
            raise TimeoutError("once more")
        seen.put_nowait(envelope.payload)
        return {"result": SECRET}

    async with make_queue("coded", **options) as queue:
        sent = await queue.add("send", DATA)
        assert sent.payload == DATA
        assert SECRET.encode() not in await keyspace(valkey, prefix)
        async with make_worker("coded", handle, keep_results=60, backoff_delay=0, **options) as worker:
            assert await asyncio.wait_for(seen.get(), 20) == DATA
            await worker.run_until_idle()
        assert await queue.result(sent.job_id) == {"result": SECRET}
        assert SECRET.encode() not in await keyspace(valkey, prefix)


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_a_dead_letter_keeps_the_encoded_payload_and_can_be_replayed(
    valkey: Server, prefix: str, kind: str
) -> None:
    options: Any = {"redis": valkey.url, "prefix": prefix}
    make_queue: Callable[..., Any] = ListQueue if kind == "list" else StreamQueue
    make_worker: Callable[..., Any] = ListWorker if kind == "list" else StreamWorker
    seen: asyncio.Queue[Any] = asyncio.Queue()

    async def handle(envelope: Envelope) -> None:
        seen.put_nowait(envelope.payload)

    async with make_queue("coded", codecs=encrypted(), **options) as queue:
        await queue.add("send", DATA)
        wrong = Codecs([Zstd(), AesGcm({"b": OTHER_KEY})])
        async with make_worker("coded", handle, codecs=wrong, **options) as worker:
            await worker.run_until_idle()
        (dead,) = [one async for one in queue.dead_letters()]
        assert "key 'a' is not among those given" in dead.last_error
        assert "_toril" in dead.envelope.payload
        assert await queue.replay() == 1
        async with make_worker("coded", handle, codecs=encrypted(), **options):
            assert await asyncio.wait_for(seen.get(), 20) == DATA


def test_blocking_queues_workers_flows_and_events(valkey: Server, prefix: str) -> None:
    options: Any = {"redis": valkey.url, "prefix": prefix, "codecs": encrypted()}
    with (
        sync.Queue("coded", **options) as queue,
        sync.QueueEvents("coded", **options) as events,
        sync.Worker("coded", codec_handlers.echo, **options),
        sync.FlowProducer(**options) as flows,
    ):
        job = queue.add("send", DATA)
        assert job.wait_until_finished(20) == DATA
        job.refresh()
        assert (job.data, job.progress, job.returnvalue) == (DATA, {"seen": SECRET}, DATA)
        completed = next(event for event in events if event.type == "completed")
        assert getattr(completed, "returnvalue", None) == DATA
        assert flows.add(FlowNode("send", queue="coded", data=DATA)).job.wait_until_finished(20) == DATA
        job.update_data({"secret": SECRET})
        assert job.data == {"secret": SECRET}
    assert SECRET.encode() not in asyncio.run(keyspace(valkey, prefix))


def test_a_blocking_manual_worker(valkey: Server, prefix: str) -> None:
    options: Any = {"redis": valkey.url, "prefix": prefix, "codecs": encrypted()}
    with sync.Queue("coded", **options) as queue, sync.ManualWorker("coded", **options) as worker:
        added = queue.add("send", DATA)
        job = worker.get_next_job(wait=10)
        assert job is not None
        assert job.data == DATA
        worker.complete(job, SECRET)
        assert added.wait_until_finished(20) == SECRET
