"""Ending jobs before their time, from another process than the one that runs them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server
from tests.waiting import until
from toril import FlowNode, FlowProducer, Job, Queue, Worker, sync
from toril.errors import JobFailed, JobLocked, JobNotFound


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


async def test_a_handler_in_a_thread_can_see_that_its_job_was_cancelled(server_url: str, prefix: str) -> None:
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


async def test_word_that_came_too_late_stops_no_later_job_of_that_id(
    server: Server, server_url: str, prefix: str
) -> None:
    def looks() -> int:
        with server.client() as client:
            return int(client.info("commandstats").get("cmdstat_mget", {}).get("calls", 0))

    async def handle(job: Job) -> str:
        before = looks()
        await until(lambda: looks() >= before + 2, "the worker has looked twice for word about this job")
        return "done"

    async with Queue("emails", redis=server_url, prefix=prefix) as queue, asyncio.timeout(30):
        first = await queue.add("x", job_id="order-7")
        async with ManualWorker(server_url, queue.keys) as manual_worker:
            taken = await manual_worker.take()
            assert await queue.cancel(first.id) == "asked"
            await manual_worker.complete(taken)
        await first.remove()
        second = await queue.add("x", job_id="order-7", attempts=1)
        async with Worker("emails", handle, redis=server_url, prefix=prefix):
            assert await second.wait_until_finished() == "done"


async def test_a_wait_for_a_job_that_is_cancelled_before_it_began_ends(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix) as queue, asyncio.timeout(30):
        job = await queue.add("x")
        waiting = asyncio.ensure_future(job.wait_until_finished())
        await asyncio.sleep(0)
        assert await queue.cancel(job.id) == "removed"
        with pytest.raises(JobNotFound, match="cancelled while it waited"):
            await waiting


async def test_a_parent_whose_child_runs_is_not_cancelled_behind_its_back(
    server_url: str, prefix: str
) -> None:
    async with (
        Queue("emails", redis=server_url, prefix=prefix) as queue,
        FlowProducer(redis=server_url, prefix=prefix) as flows,
        asyncio.timeout(30),
    ):
        flow = await flows.add(
            FlowNode("parent", queue="emails", children=[FlowNode("child", queue="emails")])
        )
        async with ManualWorker(server_url, queue.keys) as manual_worker:
            await manual_worker.take()
        with pytest.raises(JobLocked, match="children"):
            await queue.cancel(flow.job.id)
        assert await queue.get_job(flow.job.id) is not None
