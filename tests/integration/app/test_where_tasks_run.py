"""Where tasks run, on which queues, and the middleware around them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.integration.app import process_tasks
from tests.servers import Server
from toril import App, Context, InvalidOption, Job, JobFailed, JobOptions, RateLimit
from toril.app import BlockingContext, TaskCall
from toril.errors import Detached


class Point(msgspec.Struct):
    x: int


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


async def test_plain_functions_run_in_threads_with_a_blocking_context(app: App) -> None:
    @app.task
    def work(ctx: BlockingContext, n: int) -> tuple[int, bool]:
        ctx.progress(50, "half")
        return ctx.log(f"n is {n}"), threading.current_thread() is threading.main_thread()

    async with app.worker():
        job = await work.enqueue(5)
        assert await job.result(10) == (2, False)
        assert await job.get_logs() == ["half", "n is 5"]


async def test_a_plain_function_sees_that_its_job_was_cancelled(app: App) -> None:
    began, ended = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def work(ctx: BlockingContext) -> None:
        began.set()
        while not ctx.cancelled:
            ended.wait(0.01)
        ended.set()
        ctx.check_cancelled()

    async with app.worker() as worker:
        job = await work.enqueue()
        await asyncio.to_thread(began.wait, 10)
        worker.worker("default").cancel(job.id, "enough")
        with pytest.raises(JobFailed, match="enough"):
            await job.result(10)
        assert await asyncio.to_thread(ended.wait, 10)


async def test_tasks_run_in_processes(valkey: Server, prefix: str) -> None:
    app = process_tasks.app
    app.configure(redis=valkey.url, prefix=prefix)
    async with app, app.worker():
        product, pid = await (await process_tasks.multiply.enqueue(5)).result(30)
        assert (product, pid != os.getpid()) == (15, True)
        assert await (await process_tasks.note.enqueue("hello")).result(30) == 1


@pytest.mark.parametrize("queue", ["list:numbers", "stream:numbers"])
async def test_tasks_of_lists_and_streams(app: App, queue: str) -> None:
    app.queue(queue, keep_results=60)

    @app.task(queue=queue, attempts=2)
    async def add(ctx: Context, a: int, b: int = 2) -> Point:
        await ctx.log("kept in memory")
        return Point(a + b + ctx.attempt)

    async with app.worker() as worker:
        job = await add.enqueue(1)
        assert await job.result(10) == Point(4)
        (many,) = await add.enqueue_many([add.bind(1, b=3)])
        assert await many.result(10) == Point(5)
        with pytest.raises(Detached, match="list or stream"):
            await job.promote()
        with pytest.raises(TimeoutError):
            await (await add.options(delay=60).enqueue(1)).result(0.05)
        with pytest.raises(InvalidOption, match="priority: is not an option of jobs in"):
            await add.options(priority=1).enqueue(1)
        await worker.stop()


async def test_several_queues_have_their_own_options(app: App) -> None:
    app.queue("images", concurrency=4, rate_limit=RateLimit(100))

    @app.task(queue="emails")
    async def send() -> None: ...

    @app.task(queue="images")
    async def resize() -> None: ...

    worker = app.worker({"emails": 7, "images": 3}, shutdown_timeout=5)
    assert {str(name): one.concurrency for name, one in zip(worker.queues, worker.workers, strict=True)} == {
        "emails": 7,
        "images": 3,
    }
    assert app.worker(["images"]).worker("images").concurrency == 4
    assert worker.worker("images").options.rate_limit == RateLimit(100)
    assert worker.worker("emails").options.shutdown_timeout == 5
    with pytest.raises(InvalidOption, match="videos has no tasks"):
        app.worker(["videos"])
    with pytest.raises(InvalidOption, match="has no tasks"):
        App().worker()


async def test_run_until_idle_waits_for_jobs_that_tasks_add_to_other_queues(app: App) -> None:
    ended: list[str] = []

    @app.task(queue="first")
    async def first(n: int) -> None:
        await second.enqueue(n)

    @app.task(queue="second")
    async def second(n: int) -> None:
        ended.append(f"second {n}")
        if n:
            await first.enqueue(n - 1)

    await first.enqueue(3)
    async with app.worker() as worker:
        await worker.run_until_idle()
        assert ended == ["second 3", "second 2", "second 1", "second 0"]
        assert (worker.processed, worker.failed, worker.left_behind) == (8, 0, 0)


async def test_defaults_of_the_app_and_of_a_queue_reach_its_jobs(app: App) -> None:
    app.queue("emails", defaults=JobOptions(attempts=9, remove_on_complete=True))

    @app.task(queue="emails", priority=2)
    async def send() -> None: ...

    job = await send.enqueue()
    assert (job.options.attempts, job.options.priority) == (9, 2)


# --- middleware -----------------------------------------------------------------------------------------------------

Next = Callable[[], Awaitable[Any]]


def named(name: str, calls: list[str]) -> Callable[[Context[Any], Next], Awaitable[Any]]:
    async def middleware(ctx: Context[Any], proceed: Next) -> Any:
        calls.append(f"{name} before {ctx.task.name}")
        try:
            return await proceed()
        finally:
            calls.append(f"{name} after")

    return middleware


async def test_middleware_is_around_tasks_of_every_executor(valkey: Server, prefix: str) -> None:
    calls: list[str] = []
    app = App(redis=valkey.url, prefix=prefix, middleware=[named("a", calls), named("b", calls)])

    @app.task(middleware=[named("c", calls)])
    async def in_loop() -> None:
        calls.append("in loop")

    @app.task
    def in_thread() -> None:
        calls.append("in thread")

    async with app, app.worker():
        await (await in_loop.enqueue()).result(10)
        await (await in_thread.enqueue()).result(10)
    assert calls == [
        *(
            "a before in_loop",
            "b before in_loop",
            "c before in_loop",
            "in loop",
            "c after",
            "b after",
            "a after",
        ),
        *("a before in_thread", "b before in_thread", "in thread", "b after", "a after"),
    ]


async def test_middleware_may_replace_the_result_and_the_error(valkey: Server, prefix: str) -> None:
    async def doubled(ctx: Context[Any], proceed: Next) -> Any:
        if ctx.arguments["n"] == 0:
            raise ValueError("zero is not allowed")
        return await proceed() * 2

    app = App(redis=valkey.url, prefix=prefix, middleware=[doubled])

    @app.task
    async def in_loop(n: int) -> int:
        return n

    @app.task
    def in_thread(n: int) -> int:
        return n

    async with app, app.worker():
        for task in (in_loop, in_thread):
            assert await (await task.enqueue(2)).result(10) == 4
            with pytest.raises(JobFailed, match="zero is not allowed"):
                await (await task.enqueue(0)).result(10)


async def test_enqueue_middleware_may_change_the_call(valkey: Server, prefix: str) -> None:
    async def urgent(
        call: TaskCall[Any], proceed: Callable[[TaskCall[Any]], Awaitable[Job[Any]]]
    ) -> Job[Any]:
        return await proceed(call.with_options(priority=1) if call.arguments["n"] > 1 else call)

    async with App(redis=valkey.url, prefix=prefix, enqueue_middleware=[urgent]) as app:

        @app.task
        async def work(n: int) -> None: ...

        assert [(await work.enqueue(n)).priority for n in (1, 2)] == [0, 1]
        assert [job.priority for job in await work.enqueue_many([work.bind(1), work.bind(2)])] == [0, 1]
