"""Of the duplicates of an active job, the last one runs after it (`Deduplication.keep_last`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE, until_state
from toril import FlowNode, FlowProducer, InvalidOption, Job, JobOptions, PermanentError, Queue, Worker
from toril.commands.command import plain
from toril.protocol.options import Deduplication
from toril.transport import AsyncTransport

KEEP = Deduplication.keep_last("same")


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_job_of_a_burst_runs_after_the_active_one(
    queue: Queue, valkey_url: str, prefix: str, fails: bool
) -> None:
    begun, release, ran = asyncio.Event(), asyncio.Event(), list[int]()

    async def handle(job: Job[Any]) -> None:
        ran.append(job.data["n"])
        begun.set()
        if job.data["n"] == 1:
            await release.wait()
            if fails:
                raise PermanentError("no")

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, concurrency=3) as worker:
        first = await queue.add("n", {"n": 1}, deduplication=KEEP)
        await begun.wait()
        second = await queue.add("n", {"n": 2}, deduplication=KEEP)
        await queue.add("n", {"n": 3}, deduplication=KEEP)
        assert (second.id, second.added) == (first.id, False)
        release.set()
        await until_state(queue, first.id, "failed" if fails else "completed")
        await worker.run_until_idle()
    assert ran == [1, 3]
    assert await queue.get_deduplication_job_id("same") is None


async def test_a_job_that_was_left_behind_is_added_by_the_stalled_sweep(
    queue: Queue, valkey_url: str, prefix: str, transport: AsyncTransport
) -> None:
    ran = asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        assert job.data == {"n": 7}
        ran.set()

    stored = ("name", "n", "data", '{"n":7}', "opts", '{"attempts":1}', "jid", "left")
    await transport.run(plain(int, "HSET", queue.keys.next_job("gone"), *stored))
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, stalled_check_interval=0.1)
    async with asyncio.timeout(20), worker:
        await ran.wait()
        await until_state(queue, "left", "completed")


async def test_a_child_cannot_keep_the_last(valkey_url: str, prefix: str) -> None:
    child = FlowNode("child", queue=QUEUE, options=JobOptions(deduplication=KEEP))
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        with pytest.raises(InvalidOption, match="keep_last_if_active"):
            await flows.add(FlowNode("parent", queue=QUEUE, children=[child]))
