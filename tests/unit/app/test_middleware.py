"""Middleware around jobs, around enqueue, and around both."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from toril import App, Context, InvalidOption, Job
from toril.app import Proceed, ProceedEnqueue, TaskCall, chain, parallel_then

current_tenant: ContextVar[str] = ContextVar("current_tenant", default="none")


class Tenants:
    """Passes the tenant of the caller to the task, as an argument."""

    async def __call__(self, ctx: Context, proceed: Proceed) -> Any:
        token = current_tenant.set(str(ctx.arguments["tenant"]))
        try:
            return await proceed()
        finally:
            current_tenant.reset(token)

    async def enqueue(self, call: TaskCall, proceed: ProceedEnqueue) -> Job:
        return await proceed(call.with_arguments(tenant=current_tenant.get()))


def make_app(**options: Any) -> App:
    app = App(redis="redis://127.0.0.1:1", **options)

    @app.task(queue="q", unique=["text"])
    async def shout(text: str, tenant: str = "") -> str:
        return f"{text} of {current_tenant.get()}"

    @app.task(queue="q")
    async def join(texts: list[str], tenant: str = "") -> str:
        return " and ".join(texts) + f" for {current_tenant.get()}"

    return app


async def test_an_object_in_one_list_is_around_enqueue_and_around_the_job() -> None:
    app = make_app(middleware=[Tenants()])
    shout = app.tasks["shout"]
    with app.testing("inline") as captured:
        current_tenant.set("acme")
        job = await shout.enqueue("hello")
        assert await job.result() == "hello of acme"
        assert captured.calls[0].arguments == {"text": "hello", "tenant": "acme"}
        assert [await job.result() for job in await app.enqueue_many([shout.bind("a"), shout.bind("b")])] == [
            "a of acme",
            "b of acme",
        ]


async def test_calls_of_a_flow_go_through_the_middleware() -> None:
    app = make_app(middleware=[Tenants()])
    shout, join = app.tasks["shout"], app.tasks["join"]
    with app.testing("inline") as captured:
        current_tenant.set("acme")
        last = await parallel_then([shout.bind("a"), shout.bind("b")], join).enqueue()
        assert await last.result() == "a of acme and b of acme for acme"
        assert [one.arguments["tenant"] for one in captured.calls] == ["acme"] * 3
        assert await (await chain(shout.bind("a"), shout).enqueue()).result() == "a of acme of acme"


async def test_middleware_of_a_task_is_inside_that_of_the_app() -> None:
    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __call__(self, ctx: Context, proceed: Proceed) -> Any:
            order.append(f"{self.name} runs")
            return await proceed()

        async def enqueue(self, call: TaskCall, proceed: ProceedEnqueue) -> Job:
            order.append(f"{self.name} adds")
            return await proceed(call)

    app = App(redis="redis://127.0.0.1:1", middleware=[Named("app")])

    @app.task(middleware=[Named("task")])
    async def work() -> None: ...

    with app.testing("inline"):
        await work.enqueue()
    assert order == ["app adds", "task adds", "app runs", "task runs"]


@pytest.mark.parametrize("proceeds", [False, True])
async def test_nothing_of_a_flow_is_added_if_one_call_is_refused(*, proceeds: bool) -> None:
    seen: list[str] = []

    async def refuse(call: TaskCall, proceed: ProceedEnqueue) -> Job:
        if call.arguments.get("text") == "bad":
            if proceeds:
                raise PermissionError("not for you")
            return None  # type: ignore[return-value]  # what a mistake would return
        try:
            return await proceed(call)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    app = make_app(enqueue_middleware=[refuse])
    shout, join = app.tasks["shout"], app.tasks["join"]
    flow = parallel_then([shout.bind("good"), shout.bind("bad")], join)
    with app.testing("capture") as captured:
        expected = PermissionError if proceeds else InvalidOption
        with pytest.raises(expected) as raised:
            await flow.enqueue()
        assert captured.calls == []
    if not proceeds:
        assert "did not proceed with the call of 'shout'" in str(raised.value)
    assert set(seen) == {expected.__name__}  # those that proceeded see why nothing was added


async def test_a_cancelled_enqueue_of_a_flow_ends_its_middleware() -> None:
    began, ended = asyncio.Event(), []

    async def slow(call: TaskCall, proceed: ProceedEnqueue) -> Job:
        try:
            if call.arguments.get("text") == "slow":
                began.set()
                await asyncio.Event().wait()
            return await proceed(call)
        finally:
            ended.append(call.task.name)

    app = make_app(enqueue_middleware=[slow])
    shout, join = app.tasks["shout"], app.tasks["join"]
    with app.testing("capture"):
        task = asyncio.create_task(parallel_then([shout.bind("fast"), shout.bind("slow")], join).enqueue())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(ended) == ["join", "shout", "shout"]


def test_changed_arguments_are_checked_and_stay_unique_by_their_new_values() -> None:
    shout = make_app().tasks["shout"]
    call = shout.bind("a")
    other = call.with_arguments(text="b")
    assert other.arguments == {"text": "b", "tenant": ""}
    assert other.options.deduplication == shout.bind("b").options.deduplication
    assert other.options.deduplication != call.options.deduplication
    with pytest.raises(TypeError, match="unexpected keyword argument 'txt'"):
        call.with_arguments(txt="b")
    with pytest.raises(InvalidOption, match="text"):
        call.with_arguments(text=5)
