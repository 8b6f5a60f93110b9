"""Results of list and stream jobs: kept if asked for, and only for so long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.servers import Server
from toril import Envelope, InvalidOption, ListQueue, ListWorker, StreamQueue, StreamWorker
from toril.errors import JobNotFound

KINDS = [(ListQueue, ListWorker), (StreamQueue, StreamWorker)]


async def handle(envelope: Envelope) -> Any:
    return {"seen": envelope.payload["n"]}


@pytest.mark.parametrize(("queue_kind", "worker_kind"), KINDS, ids=["list", "stream"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
async def test_results_are_kept_for_as_long_as_the_option_says(
    server: Server, prefix: str, queue_kind: Any, worker_kind: Any, kept: bool
) -> None:
    place = {"redis": server.url, "prefix": prefix, "env": "test"}
    async with queue_kind("jobs.work", **place) as queue:
        sent = await queue.add("task", {"n": 7})
        options = {"keep_results": 60} if kept else {}
        async with asyncio.timeout(20), worker_kind("jobs.work", handle, **place, **options) as worker:
            await worker.run_until_idle()
        if kept:
            assert await queue.result(sent.job_id) == {"seen": 7}
            with server.client() as client:
                (key,) = client.keys(f"{prefix}:*:toril:result:*")
                assert 50_000 < client.pttl(key) <= 60_000
        else:
            with pytest.raises(JobNotFound, match="keep_results"):
                await queue.result(sent.job_id)


@pytest.mark.parametrize(("queue_kind", "worker_kind"), KINDS, ids=["list", "stream"])
async def test_a_result_without_a_json_form_fails_its_job(
    valkey: Server, prefix: str, queue_kind: Any, worker_kind: Any
) -> None:
    async def returns_a_lock(envelope: Envelope) -> Any:
        return asyncio.Lock()

    place = {"redis": valkey.url, "prefix": prefix, "env": "test"}
    async with queue_kind("jobs.work", **place) as queue:
        await queue.add("task")
        worker = worker_kind("jobs.work", returns_a_lock, **place, keep_results=60)
        async with asyncio.timeout(20), worker:
            await worker.run_until_idle()
        (letter,) = [one async for one in queue.dead_letters()]
        assert letter.dlq_reason == "validation_error"
        assert "result" in letter.last_error


def test_results_cannot_be_kept_for_no_time() -> None:
    with pytest.raises(InvalidOption, match="keep_results"):
        ListWorker("jobs.work", handle, keep_results=0)
