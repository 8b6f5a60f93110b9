"""Ending jobs before their time, from another process than the one that runs them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from toril import Job, Queue, Worker, sync
from toril.contract.errors import JobFailed


async def test_a_running_job_is_stopped_and_may_be_retried_at_once(server_url: str, prefix: str) -> None:
    begun, runs = asyncio.Event(), 0

    async def handle(job: Job) -> str:
        nonlocal runs
        runs += 1
        begun.set()
        if runs == 1:
            await asyncio.Event().wait()
        return "done"

    async with (
        Queue("emails", redis=server_url, prefix=prefix) as queue,
        Worker("emails", handle, redis=server_url, prefix=prefix),
        asyncio.timeout(30),
    ):
        job = await queue.add("x", attempts=1)
        await begun.wait()
        assert await queue.cancel(job.id, "the customer left") == "asked"
        with pytest.raises(JobFailed, match="the customer left"):
            await job.wait_until_finished()
        await job.retry()
        assert await job.wait_until_finished() == "done"  # the word was for the first attempt only


async def test_a_handler_in_a_thread_is_told_that_its_job_was_cancelled(server_url: str, prefix: str) -> None:
    begun, told = threading.Event(), threading.Event()

    def handle(job: sync.Job) -> None:
        begun.set()
        while not job.cancelled and not stopped.wait(0.01):
            pass
        told.set()

    stopped = threading.Event()
    async with (
        Queue("emails", redis=server_url, prefix=prefix) as queue,
        Worker("emails", handle, redis=server_url, prefix=prefix),
        asyncio.timeout(30),
    ):
        job = await queue.add("x", attempts=1)
        try:
            await asyncio.to_thread(begun.wait, 20)
            await queue.cancel(job.id)
            with pytest.raises(JobFailed, match="cancelled"):
                await job.wait_until_finished()
            assert await asyncio.to_thread(told.wait, 20)
        finally:
            stopped.set()
