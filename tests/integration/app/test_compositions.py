"""`chain`, `parallel` and `parallel_then` as flows on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.app import process_tasks
from tests.servers import Server
from toril import App, JobFailed, Queue
from toril.app import chain, parallel, parallel_then


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix, concurrency=10) as made:
        yield made


async def test_each_step_of_a_chain_gets_the_result_before_it(app: App) -> None:
    @app.task(queue="one")
    async def start(n: int) -> int:
        return n

    @app.task(queue="two", version=2)
    async def double(n: int, by: int = 2) -> int:
        return n * by

    @app.task(queue="one")
    def text(n: int) -> str:
        return f"it is {n}"

    async with app.worker():
        job = await chain(start.bind(5), double, text).enqueue()
        assert await job.result(10) == "it is 10"
        separate = await chain(start.bind(5), double.bind(7)).enqueue()
        assert await separate.result(10) == 14


async def test_parallel_calls_give_their_results_in_order(app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def wait(n: int) -> int:
        if n == 0:
            await gate.wait()
        gate.set()
        return n

    @app.task
    async def join(numbers: list[int], sign: str = "-") -> str:
        return sign.join(str(n) for n in numbers)

    async with app.worker():
        jobs = await parallel(*(wait.bind(n) for n in range(5))).enqueue()
        assert await jobs.result(10) == [0, 1, 2, 3, 4]
        last = await parallel_then([wait.bind(n) for n in range(20)], join).enqueue()
        assert await last.result(10) == "-".join(str(n) for n in range(20))
        with pytest.raises(TimeoutError):
            await (await parallel(wait.options(delay=60).bind(1)).enqueue()).result(0.05)


async def test_a_step_that_fails_fails_those_after_it(app: App) -> None:
    @app.task(attempts=1)
    async def fail(n: int) -> int:
        raise ValueError("broken")

    @app.task
    async def double(n: int) -> int:
        return n * 2

    async with app.worker():
        job = await chain(double.bind(1), fail, double).enqueue()
        with pytest.raises(JobFailed, match="child"):
            await job.result(10)
        jobs = await parallel(double.bind(1), fail.bind(1)).enqueue()
        with pytest.raises(JobFailed, match="broken"):
            await jobs.result(10)


async def test_results_reach_a_task_in_a_process(valkey: Server, prefix: str) -> None:
    app = process_tasks.app
    with app.configured(redis=valkey.url, prefix=prefix):
        async with app, app.worker():
            job = await parallel_then(
                [process_tasks.multiply.bind(n) for n in (1, 2)], process_tasks.add_first
            ).enqueue()
            assert await job.result(30) == 9


async def test_text_that_looks_like_a_reserved_name_is_an_argument(
    app: App, valkey: Server, prefix: str
) -> None:
    @app.task(queue="texts")
    async def echo(text: str) -> str:
        return text

    async with app.worker(), Queue("texts", redis=valkey.url, prefix=prefix) as queue:
        for text in ('"_children"', '"_v"', "_v", '{"_children": 1}'):
            assert await (await echo.enqueue(text)).result(10) == text
        broken = await queue.add("echo", {"text": "x", "_children": {"argument": 1}})
        with pytest.raises(JobFailed, match="_children"):
            await broken.wait_until_finished(10)
