"""Queues with codecs: what is stored, who can read it, and what happens to payloads that cannot be read."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest

from tests.integration.codecs import codec_handlers
from tests.integration.codecs.keys import KEY, OTHER_KEY
from tests.servers import Server
from toril import (
    Batch,
    FlowNode,
    FlowProducer,
    Job,
    JobFailed,
    Queue,
    QueueEvents,
    Worker,
)
from toril.codecs import AesGcm, Codecs, FolderStore, Offload, Zstd
from toril.errors import PlainPayload, UnreadablePayload
from toril.jobs import JobBatch
from toril.worker import ManualWorker

SECRET = "the secret word"
DATA = {"secret": SECRET, "padding": "x" * 2000}


def encrypted(**options: Any) -> Codecs:
    return Codecs([Zstd(), AesGcm({"a": KEY})], **options)


async def keyspace(valkey: Server, prefix: str) -> bytes:
    """Everything that is stored under a prefix."""
    from redis.asyncio import Redis

    found: list[object] = []
    async with Redis.from_url(valkey.url) as client:
        async for key in client.scan_iter(match=f"{prefix}:*"):
            kind = await client.type(key)
            match kind:
                case b"hash":
                    found.append(await client.hgetall(key))
                case b"stream":
                    found.append(await client.xrange(key))
                case b"list":
                    found.append(await client.lrange(key, 0, -1))
                case b"string":
                    found.append(await client.get(key))
                case b"zset":
                    found.append(await client.zrange(key, 0, -1))
    return repr(found).encode()


async def echo(job: Job) -> Any:
    await job.update_progress({"progress": SECRET})
    return {"result": SECRET, "data": job.data}


async def test_neither_data_nor_result_nor_progress_is_stored_in_plain_text(
    valkey: Server, prefix: str
) -> None:
    codecs = encrypted()
    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        QueueEvents("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as events,
        Worker("coded", echo, redis=valkey.url, prefix=prefix, codecs=codecs),
    ):
        job = await queue.add("send", DATA)
        assert job.data == DATA
        assert await job.wait_until_finished(20) == {"result": SECRET, "data": DATA}
        assert SECRET.encode() not in await keyspace(valkey, prefix)
        seen = {event.type: event async for event in until_completed(events)}
        found = await queue.get_job(job.id)
    assert seen["progress"].progress == {"progress": SECRET}
    assert seen["completed"].returnvalue == {"result": SECRET, "data": DATA}
    assert found is not None
    assert (found.data, found.progress) == (DATA, {"progress": SECRET})
    assert found.returnvalue["result"] == SECRET
    assert found.as_json()["data"]["_toril"]["steps"][1] == {"codec": "aes-gcm", "key": "a"}


async def until_completed(events: QueueEvents) -> Any:
    async for event in events:
        yield event
        if event.type == "completed":
            return


async def test_the_data_can_be_replaced_and_read_again(valkey: Server, prefix: str) -> None:
    codecs = encrypted()
    seen: list[Any] = []

    async def handle(job: Job) -> None:
        seen.append(job.data)
        if job.attempts_made == 0:
            await job.update_data({"secret": SECRET, "step": 2})
            seen.append(job.data)
            await job.refresh()
            seen.append(job.data)
            raise TimeoutError
        assert SECRET.encode() not in await keyspace(valkey, prefix)

    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue:
        job = await queue.add("send", DATA, attempts=2, backoff=0)
        async with Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=codecs):
            await job.wait_until_finished(20)
    changed = {"secret": SECRET, "step": 2}
    assert seen == [DATA, changed, changed, changed]


async def test_the_wrong_key_fails_the_job_for_good_and_the_right_key_reads_it_later(
    valkey: Server, prefix: str
) -> None:
    wrong = Codecs([Zstd(), AesGcm({"b": OTHER_KEY})])
    ran: list[str] = []

    async def handle(job: Job) -> str:
        ran.append(job.id)
        return str(job.data["secret"])

    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=encrypted()) as queue:
        job = await queue.add("send", DATA, attempts=5)
        async with Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=wrong) as worker:
            failures: list[Any] = []
            worker.on("failed", lambda failed, error: failures.append((failed.id, error)))
            with pytest.raises(JobFailed, match="key 'a' is not among those given"):
                await job.wait_until_finished(20)
        assert not ran
        await job.refresh()
        assert (job.attempts_made, job.data) == (1, DATA)
        assert isinstance(failures[0][1], UnreadablePayload)
        await job.retry()
        both = Codecs([Zstd(), AesGcm({"b": OTHER_KEY, "a": KEY})])
        async with (
            Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=both),
            Queue("coded", redis=valkey.url, prefix=prefix, codecs=both) as reader,
        ):
            retried = await reader.get_job(job.id)
            assert retried is not None
            assert await retried.wait_until_finished(20) == SECRET
            with pytest.raises(UnreadablePayload):  # its result has the new key
                await job.wait_until_finished(20)


async def test_plain_data_on_an_encrypted_queue_is_refused_unless_allowed(
    valkey: Server, prefix: str
) -> None:
    async def handle(job: Job) -> str:
        return str(job.data["secret"])

    async with Queue("coded", redis=valkey.url, prefix=prefix) as plain_queue:
        job = await plain_queue.add("send", DATA, attempts=3)
        async with Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=encrypted()):
            with pytest.raises(JobFailed, match="data is not encrypted"):
                await job.wait_until_finished(20)
        await job.retry()
        async with (
            Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=encrypted(allow_plain=True)),
            Queue("coded", redis=valkey.url, prefix=prefix, codecs=encrypted(allow_plain=True)) as queue,
        ):
            again = await queue.get_job(job.id)
            assert again is not None
            assert await again.wait_until_finished(20) == SECRET
            assert again.data == DATA
        async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=encrypted()) as strict:
            stored = await strict.get_job(job.id)
            assert stored is not None
            with pytest.raises(PlainPayload):
                _ = stored.data


async def test_large_payloads_are_offloaded_both_ways(valkey: Server, prefix: str, tmp_path: Path) -> None:
    codecs = Codecs([AesGcm({"a": KEY}), Offload(FolderStore(tmp_path), min_size=1000)])
    large = {"text": "y" * 12_000_000}  # more than a job may hold

    async def handle(job: Job) -> Any:
        return {"length": len(job.data["text"]), "back": job.data["text"][:5000]}

    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=codecs, max_result_size=None),
    ):
        job = await queue.add("count", large)
        result = await job.wait_until_finished(30)
        assert (result["length"], len(result["back"])) == (12_000_000, 5000)
        small = await queue.add("count", {"text": "z"})
        assert await small.wait_until_finished(20) == {"length": 1, "back": "z"}
        assert len(await keyspace(valkey, prefix)) < 20_000
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) == 2
    assert all(b"yyyy" not in one.read_bytes() for one in files)


async def test_a_removed_payload_fails_its_job_with_the_name_of_the_file(
    valkey: Server, prefix: str, tmp_path: Path
) -> None:
    codecs = Codecs([Offload(FolderStore(tmp_path), min_size=10)])
    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue:
        job = await queue.add("send", DATA)
        for file in [one for one in tmp_path.rglob("*") if one.is_file()]:
            file.unlink()
        async with Worker("coded", echo, redis=valkey.url, prefix=prefix, codecs=codecs):
            with pytest.raises(JobFailed, match="is not in the store"):
                await job.wait_until_finished(20)


class BrokenStore:
    """A store that cannot be reached at the first read."""

    def __init__(self, folder: Path) -> None:
        self._inner = FolderStore(folder)
        self.reads = 0

    def write(self, name: str, content: bytes) -> None:
        self._inner.write(name, content)

    def read(self, name: str, max_size: int) -> bytes | None:
        self.reads += 1
        if self.reads == 1:
            raise ConnectionError("the store does not answer")
        return self._inner.read(name, max_size)


async def test_a_store_that_cannot_be_reached_is_tried_again(
    valkey: Server, prefix: str, tmp_path: Path
) -> None:
    store = BrokenStore(tmp_path)
    codecs = Codecs([Offload(store, min_size=10)])

    async def handle(job: Job) -> int:
        return len(job.data)

    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=codecs),
    ):
        job = await queue.add("send", DATA, attempts=2, backoff=0)
        assert await job.wait_until_finished(20) == 2
        await job.refresh()
    assert job.attempts_made == 2
    assert store.reads == 2


async def test_codecs_by_job_name(valkey: Server, prefix: str) -> None:
    codecs = {"secret": encrypted()}
    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        Worker("coded", lambda job: job.data, redis=valkey.url, prefix=prefix, codecs=codecs),
    ):
        secret, open_job = await queue.add_bulk([("secret", DATA), ("open", {"n": 1})])
        assert await secret.wait_until_finished(20) == DATA
        assert await open_job.wait_until_finished(20) == {"n": 1}
    assert open_job.as_json()["data"] == {"n": 1}
    assert "_toril" in secret.as_json()["data"]


async def test_handlers_in_threads_and_processes_get_the_data_and_report_progress(
    valkey: Server, prefix: str
) -> None:
    codecs = encrypted()
    for executor in ("thread", "process"):
        name = f"coded-{executor}"
        async with (
            Queue(name, redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
            Worker(
                name,
                codec_handlers.echo,
                redis=valkey.url,
                prefix=prefix,
                codecs=codecs,
                executor=executor,
            ),
        ):
            job = await queue.add("send", DATA)
            assert await job.wait_until_finished(30) == DATA
            await job.refresh()
            assert job.progress == {"seen": SECRET}
    assert SECRET.encode() not in await keyspace(valkey, prefix)


async def test_batches_of_encoded_jobs(valkey: Server, prefix: str) -> None:
    codecs = encrypted()

    async def total(jobs: JobBatch[Job]) -> list[Any]:
        return [job.data["n"] * 10 for job in jobs]

    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue:
        jobs = await queue.add_bulk([("send", {"n": n, "secret": SECRET}) for n in range(5)])
        batch = Batch(size=5, wait=0.01)
        async with Worker("coded", total, redis=valkey.url, prefix=prefix, codecs=codecs, batch=batch):
            assert [await job.wait_until_finished(20) for job in jobs] == [0, 10, 20, 30, 40]
    assert SECRET.encode() not in await keyspace(valkey, prefix)


async def test_a_manual_worker_reads_and_writes_encoded_payloads(valkey: Server, prefix: str) -> None:
    codecs = encrypted()
    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        ManualWorker("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as worker,
    ):
        added = await queue.add("send", DATA)
        job = await worker.get_next_job(wait=10)
        assert job is not None
        assert job.data == DATA
        await worker.complete(job, {"result": SECRET})
        assert await added.wait_until_finished(20) == {"result": SECRET}
    assert SECRET.encode() not in await keyspace(valkey, prefix)


# --- flows and schedulers -------------------------------------------------------------------------------------------


async def test_a_parent_reads_the_encoded_results_of_its_children(valkey: Server, prefix: str) -> None:
    codecs = encrypted()

    async def child(job: Job) -> Any:
        return {"secret": SECRET, "n": job.data["n"]}

    async def parent(job: Job) -> Any:
        values = await job.get_children_values()
        found = await job.get_dependencies()
        assert found.processed == values
        return sorted(one["n"] for one in values.values())

    flow = FlowNode(
        "parent",
        queue="parents",
        data=DATA,
        children=[FlowNode("child", queue="children", data={"n": n, "secret": SECRET}) for n in (1, 2)],
    )
    options: Any = {"redis": valkey.url, "prefix": prefix, "codecs": codecs}
    async with (
        FlowProducer(**options) as flows,
        Worker("children", child, **options),
        Worker("parents", parent, **options),
    ):
        added = await flows.add(flow)
        assert added.job.data == DATA
        assert await added.job.wait_until_finished(20) == [1, 2]
    assert SECRET.encode() not in await keyspace(valkey, prefix)


async def test_the_template_of_a_scheduler_is_encoded_and_never_offloaded(
    valkey: Server, prefix: str, tmp_path: Path
) -> None:
    codecs = Codecs([AesGcm({"a": KEY}), Offload(FolderStore(tmp_path), min_size=0)])
    ran: asyncio.Queue[Any] = asyncio.Queue()

    async def handle(job: Job) -> None:
        ran.put_nowait(job.data)

    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue:
        await queue.schedulers.upsert("often", every=0.05, name="send", data=DATA)
        (stored,) = await queue.schedulers.list()
        assert stored.data == DATA
        assert not list(tmp_path.iterdir()), "all future jobs would share one file, which ages"
        assert SECRET.encode() not in await keyspace(valkey, prefix)
        async with Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=codecs):
            assert [await asyncio.wait_for(ran.get(), 20) for _ in range(3)] == [DATA] * 3


async def test_order_is_kept_without_offload(valkey: Server, prefix: str) -> None:
    async with Queue("coded", redis=valkey.url, prefix=prefix, codecs=encrypted()) as queue:
        add = functools.partial(queue.add, "send")
        await asyncio.gather(*(add({"n": n}) for n in range(20)))
        jobs = await queue.get_jobs("wait", ascending=True)
    assert [job.data["n"] for job in jobs] == list(range(20))
