"""Resources of a lifespan, dependencies of tasks, and what is closed when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import App, Context, Depends, InvalidOption, JobFailed
from toril.app import BlockingContext


@dataclass
class Database:
    events: list[str] = field(default_factory=list)


@dataclass
class Resources:
    database: Database


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def app(valkey: Server, prefix: str, events: list[str]) -> App:
    @contextlib.asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[Resources]:
        events.append("entered")
        try:
            yield Resources(Database(events))
        finally:
            events.append("left")

    return App(redis=valkey.url, prefix=prefix, lifespan=lifespan, shutdown_timeout=5)


async def test_the_lifespan_is_around_all_jobs_of_a_worker(app: App, events: list[str]) -> None:
    @app.task
    async def work(ctx: Context[Resources], database: Database, n: int) -> None:
        assert ctx.resources.database is database is ctx.resource(Database)
        await asyncio.sleep(0)
        events.append(f"ran {n}")

    await work.enqueue(1)  # type: ignore[call-overload]  # injected by type: give it a default for type checkers
    async with app.worker() as worker:
        await worker.run_until_idle()
    assert events == ["entered", "ran 1", "left"]
    await work.enqueue(2)  # type: ignore[call-overload]
    await worker.start()  # a worker starts again, with new resources
    await worker.run_until_idle()
    await worker.stop()
    await app.close()
    assert events == ["entered", "ran 1", "left", "entered", "ran 2", "left"]


async def test_the_lifespan_is_left_when_a_start_fails(app: App, events: list[str]) -> None:
    @app.task
    async def work() -> None: ...

    app.configure(redis="redis://localhost:1", max_reconnect_attempts=1)
    with pytest.raises(Exception, match=r"localhost:1|Error 111"):
        async with app.worker(reconnect_delay=0.01):
            pytest.fail("it must not start")
    assert events == ["entered", "left"]


async def test_the_lifespan_is_left_when_a_start_is_cancelled(app: App, events: list[str]) -> None:
    @app.task
    async def work() -> None: ...

    app.configure(redis="redis://localhost:1")
    starting = asyncio.create_task(app.worker().start())
    while "entered" not in events:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: "left" in events, "the lifespan is left")


async def test_a_worker_that_is_cancelled_leaves_the_lifespan_after_its_jobs(
    app: App, events: list[str]
) -> None:
    began = asyncio.Event()

    @app.task
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("job ended")

    await work.enqueue()
    running = asyncio.create_task(app.worker(shutdown_timeout=0).run())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await app.close()
    assert events == ["entered", "job ended", "left"]


async def test_a_plain_generator_is_a_lifespan(valkey: Server, prefix: str) -> None:
    left: list[str] = []

    async def lifespan(_app: App) -> AsyncIterator[dict[str, int]]:
        yield {"n": 5}
        left.append("left")

    app = App(redis=valkey.url, prefix=prefix, lifespan=lifespan)

    @app.task
    async def work(ctx: Context[dict[str, int]]) -> int:
        return ctx.resources["n"]

    async with app, app.worker():
        assert await (await work.enqueue()).result(10) == 5
    assert left == ["left"]
    with pytest.raises(InvalidOption, match="without a Database"):
        async with app.lifespan_entered() as resources:
            resources.of_type(Database)


# --- dependencies ---------------------------------------------------------------------------------------------------


def connection(ctx: Context[Resources]) -> str:
    ctx.resources.database.events.append("connected")
    return "connection"


async def session(
    ctx: Context[Resources], first: str = Depends(connection), second: str = Depends(connection)
) -> AsyncIterator[str]:
    events = ctx.resources.database.events
    events.append(f"session on {first} {second}")
    try:
        yield "session"
    except ValueError as error:
        events.append(f"rolled back: {error}")  # it does not raise the error again
    else:
        events.append("committed")


async def test_dependencies_are_made_once_per_attempt_and_closed_with_the_error(
    app: App, events: list[str]
) -> None:
    @app.task(attempts=2, backoff=0, retry_on=(ValueError,))
    async def work(ctx: Context, db: str = Depends(session), other: str = Depends(connection)) -> str:
        if ctx.attempt == 1:
            raise ValueError("first")
        return f"{db} {other}"

    async with app.worker():
        assert await (await work.enqueue()).result(10) == "session connection"
    await app.close()
    once = ["connected", "session on connection connection"]
    assert events == ["entered", *once, "rolled back: first", *once, "committed", "left"]


async def test_an_error_of_a_dependency_fails_the_attempt(app: App) -> None:
    async def broken() -> str:
        raise ValueError("no connection")

    @app.task(attempts=1)
    async def work(value: str = Depends(broken)) -> None: ...

    async with app.worker():
        with pytest.raises(JobFailed, match="no connection"):
            await (await work.enqueue()).result(10)
    await app.close()


def blocking_session(ctx: BlockingContext[Resources]) -> Iterator[str]:
    events = ctx.resources.database.events
    events.append("opened")
    yield "blocking session"
    events.append("closed")


async def test_plain_functions_have_dependencies(app: App, events: list[str]) -> None:
    @app.task
    def work(n: int, db: str = Depends(blocking_session)) -> str:
        events.append("ran")
        return f"{db} {n}"

    async with app.worker():
        assert await (await work.enqueue(1)).result(10) == "blocking session 1"
    await app.close()
    assert events == ["entered", "opened", "ran", "closed", "left"]


async def test_providers_are_replaced_in_tests(app: App) -> None:
    @app.task
    async def work(value: str = Depends(connection)) -> str:
        return value

    with app.override({connection: lambda: "fake"}):
        assert await work() == "fake"
    assert await work() == "connection"
    assert await work(value="given") == "given"


async def test_a_direct_call_uses_the_resources_of_the_lifespan_that_is_entered(
    app: App, events: list[str]
) -> None:
    @app.task
    async def work(ctx: Context[Resources], n: int) -> int:
        await ctx.progress(n)
        return id(ctx.resources.database)

    async with app.lifespan_entered() as resources:
        assert await work(1) == await work(2) == id(resources.yielded.database)
    assert events == ["entered", "left"]
