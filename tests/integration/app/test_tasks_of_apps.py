"""Tasks on a real server: enqueued, run by the worker of an app, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from tests.servers import Server
from toril import App, Backoff, Context, InvalidOption, Job, JobFailed, Queue, Worker
from toril.app import TaskCall


@dataclass
class Receipt:
    to: str
    at: datetime


class Row(TypedDict):
    n: int


class Point(msgspec.Struct):
    x: int


class Person(pydantic.BaseModel):
    name: str


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


async def test_a_task_is_enqueued_and_its_result_has_its_type(app: App) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    @app.task(queue="emails", attempts=5, job_timeout=30, backoff=Backoff.exponential(1))
    async def send(to: str, subject: str = "Hello") -> Receipt:
        return Receipt(to, now)

    async with app.worker():
        job = await send.enqueue("a@b.c", subject="Hi")
        assert await job.result(timeout=10) == Receipt("a@b.c", now)
        assert job.options.attempts == 5
        assert await send("direct") == Receipt("direct", now)


async def test_results_of_every_kind_of_model_are_decoded(app: App) -> None:
    @app.task
    async def row() -> Row:
        return {"n": 1}

    @app.task
    async def point() -> Point:
        return Point(1)

    @app.task
    async def person() -> Person | None:
        return Person(name="Ada")

    @app.task
    def nothing() -> None: ...

    @app.task
    async def unknown():  # type: ignore[no-untyped-def]
        return Point(2)

    async with app.worker(concurrency=5):
        calls: list[TaskCall[Any]] = [row.bind(), point.bind(), person.bind(), nothing.bind(), unknown.bind()]
        results = [await job.result(10) for job in await app.enqueue_many(calls)]
    assert results == [{"n": 1}, Point(1), Person(name="Ada"), None, {"x": 2}]


async def test_jobs_of_tasks_are_plain_jobs_of_their_queue(app: App, valkey: Server, prefix: str) -> None:
    @app.task(queue="emails")
    async def send(to: str, copies: int = 1) -> int:
        return copies

    async def handle(job: Job[Any]) -> int:
        return int(job.data["copies"]) + 1

    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        added = await queue.add("send", {"to": "a", "copies": 4})
        async with app.worker() as worker:
            assert await added.wait_until_finished(10) == 4
            await worker.run_until_idle()
        mine = await send.enqueue("b")
        stored = await queue.get_job(mine.id)
        assert stored is not None
        assert (stored.name, stored.data) == ("send", {"to": "b", "copies": 1})
        async with Worker("emails", {"send": handle}, redis=valkey.url, prefix=prefix):
            assert await mine.result(10) == 2


async def test_calls_of_many_queues_are_enqueued_in_order(app: App) -> None:
    @app.task(queue="one")
    async def first(n: int) -> int:
        return n

    @app.task(queue="two")
    async def second(n: int) -> int:
        return n

    calls = [task.bind(n) for n in range(5) for task in (first, second)]
    jobs = await app.enqueue_many(calls)
    assert [(job.queue_name, job.data["n"]) for job in jobs] == [
        (queue, n) for n in range(5) for queue in ("one", "two")
    ]
    assert await app.enqueue_many([]) == []
    with pytest.raises(InvalidOption, match=r"give task\.bind"):
        await app.enqueue_many([first])  # type: ignore[arg-type]


async def test_options_of_one_call_do_not_change_the_task(app: App) -> None:
    @app.task(queue="emails", priority=7)
    async def send(to: str) -> None: ...

    delayed = await send.options(delay=60, priority=3).enqueue("a@b.c")
    assert await delayed.is_delayed()
    assert delayed.priority == 3
    assert (await send.enqueue("b")).priority == 7


async def test_a_unique_call_is_added_once(app: App) -> None:
    @app.task(unique=["to"])
    async def send(to: str, n: int) -> None: ...

    first, second, other = [await send.enqueue(to, n) for to, n in (("a", 1), ("a", 2), ("b", 1))]
    assert first.added and not second.added and other.added
    assert second.id == first.id


# --- errors ---------------------------------------------------------------------------------------------------------


class Flaky(Exception): ...


class Hopeless(ConnectionError): ...


async def test_retry_on_and_fail_on_decide_for_their_task_only(app: App) -> None:
    @app.task(attempts=3, backoff=0, retry_on=(Flaky,), fail_on=(Hopeless,))
    async def decided(kind: str, ctx: Context) -> int:
        if ctx.attempt < 3:
            raise {"flaky": Flaky, "hopeless": Hopeless}[kind](kind)
        return ctx.attempt

    @app.task(attempts=3, backoff=0)
    async def default(ctx: Context, kind: str) -> int:
        if ctx.attempt < 3:
            raise {"flaky": Flaky, "hopeless": Hopeless}[kind](kind)
        return ctx.attempt

    async with app.worker(concurrency=4):
        assert await (await decided.enqueue("flaky")).result(10) == 3  # type: ignore[call-overload]
        with pytest.raises(JobFailed, match="hopeless"):
            await (await decided.enqueue("hopeless")).result(10)  # type: ignore[call-overload]
        with pytest.raises(JobFailed, match="flaky"):
            await (await default.enqueue("flaky")).result(10)
        assert await (await default.enqueue("hopeless")).result(10) == 3


async def test_a_retry_policy_decides_when_and_whether_a_task_is_tried_again(app: App) -> None:
    seen: list[tuple[int, str]] = []

    def policy(attempts_made: int, error: BaseException | None) -> float | None:
        seen.append((attempts_made, type(error).__name__))
        return None if attempts_made == 2 else 0.0

    @app.task(attempts=9, retry_on=(Flaky,), retry_policy=policy)
    async def fail() -> None:
        raise Flaky

    async with app.worker():
        with pytest.raises(JobFailed):
            await (await fail.enqueue()).result(10)
    assert seen == [(1, "Flaky"), (2, "Flaky")]


async def test_each_task_has_its_own_time_out(app: App) -> None:
    release = asyncio.Event()

    @app.task(job_timeout=0.05, attempts=1)
    async def short() -> None:
        await asyncio.Event().wait()

    @app.task(attempts=1)
    async def long() -> str:
        await release.wait()
        return "done"

    async with app.worker(concurrency=2):
        waiting = await long.enqueue()
        with pytest.raises(JobFailed, match=r"0\.05"):
            await (await short.enqueue()).result(10)
        release.set()
        assert await waiting.result(10) == "done"


async def test_data_that_does_not_fit_fails_without_a_retry(app: App, valkey: Server, prefix: str) -> None:
    ran: list[int] = []

    @app.task(queue="emails")
    async def send(n: int) -> None:
        ran.append(n)

    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue, app.worker():
        job = await queue.add("send", {"n": "one"}, attempts=5)
        with pytest.raises(JobFailed, match=r"\$\.n"):
            await job.wait_until_finished(10)
    assert ran == []
