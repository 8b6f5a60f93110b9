"""The modes of an app for tests: inline and capture, without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from toril import App, Context, Depends, InvalidOption, JobFailed, TransientError
from toril.app import BlockingContext, Proceed, chain, parallel, parallel_then
from toril.errors import Detached, Postpone
from toril.testing import assert_enqueued, assert_not_enqueued


@dataclass
class Receipt:
    to: str
    attempt: int


def make_app(**options: Any) -> App:
    return App(redis="redis://nowhere.invalid:1", **options)


async def test_inline_runs_a_call_at_once_through_json() -> None:
    app = make_app()
    seen: list[object] = []

    @app.task
    async def send(to: tuple[str, str]) -> Receipt:
        seen.append(to)
        return Receipt(to[0], 1)

    with app.testing("inline"):
        job = await send.options(delay=3600).enqueue(("a", "b"))
        assert seen == [("a", "b")]
        assert await job.result() == Receipt("a", 1)
        assert job.returnvalue == {"to": "a", "attempt": 1}
        assert await job.is_completed()


async def test_inline_retries_without_waiting_and_result_raises_the_failure() -> None:
    app = make_app()

    @app.task(attempts=3, backoff=3600)
    async def flaky(ctx: Context, until: int) -> int:
        await ctx.log(f"attempt {ctx.attempt}")
        if ctx.attempt < until:
            raise TransientError("not yet")
        return ctx.attempt

    with app.testing("inline"):
        job = await flaky.enqueue(3)
        assert await job.result() == 3
        assert await job.get_logs() == ["attempt 1", "attempt 2", "attempt 3"]
        failed = await flaky.enqueue(4)
        assert await failed.is_failed()
        with pytest.raises(JobFailed, match="not yet") as caught:
            await failed.result(timeout=1)
        assert isinstance(caught.value.__cause__, TransientError)


async def test_inline_applies_rules_policies_and_time_outs() -> None:
    app = make_app(unknown_errors="transient")
    runs: list[str] = []

    def give_up(attempts_made: int, error: BaseException | None) -> float | None:
        return None if attempts_made == 2 else 1.0

    @app.task(attempts=9, retry_policy=give_up)
    async def by_policy() -> None:
        runs.append("policy")
        raise RuntimeError("unknown, hence retried")

    @app.task(attempts=9, fail_on=(RuntimeError,))
    async def by_rule() -> None:
        runs.append("rule")
        raise RuntimeError("not worth it")

    @app.task(attempts=1, job_timeout=0.01)
    async def too_long() -> None:
        await asyncio.Event().wait()

    @app.task
    async def later(ctx: Context) -> int:
        runs.append("later")
        if runs.count("later") < 3:
            raise Postpone(60)
        return ctx.attempt

    with app.testing("inline"):
        for task, message in ((by_policy, "hence retried"), (by_rule, "not worth"), (too_long, r"0\.01")):
            with pytest.raises(JobFailed, match=message):
                await (await task.enqueue()).result()
        assert await (await later.enqueue()).result() == 1
    assert runs == ["policy", "policy", "rule", "later", "later", "later"]


async def test_inline_runs_middleware_dependencies_and_plain_functions() -> None:
    events: list[str] = []

    async def lifespan(_app: App) -> AsyncIterator[str]:
        events.append("enter")
        yield "resource"
        events.append("leave")

    async def around(ctx: Context, proceed: Proceed) -> Any:
        events.append(f"before {ctx.task.name}")
        result = await proceed()
        events.append("after")
        return result

    def session(ctx: BlockingContext[str]) -> str:
        return ctx.resources

    app = make_app(lifespan=lifespan, middleware=[around])

    @app.task
    def plain(ctx: BlockingContext, n: int, db: str = Depends(session)) -> tuple[int, str, bool]:
        return ctx.log("x"), db, threading.current_thread() is threading.main_thread()

    async with app.testing("inline"):
        assert await (await plain.enqueue(1)).result() == (1, "resource", False)
        assert await (await plain.enqueue(1)).result() == (1, "resource", False)
    assert events == ["enter", "before plain", "after", "before plain", "after", "leave"]
    with app.testing("inline"):
        await plain.enqueue(1)
    assert events[6:] == ["enter", "before plain", "after", "leave"]


async def test_capture_runs_nothing_and_records_calls() -> None:
    app = make_app()

    @app.task
    async def send(to: str, subject: str = "Hello") -> None:
        pytest.fail("it must not run")

    @app.task
    async def other() -> None: ...

    with app.testing("capture") as captured:
        job = await send.options(delay=60).enqueue("a@b.c", subject="Hi")
        await send.enqueue_many([send.bind("d@e.f")])
        assert await job.is_delayed()
        with pytest.raises(Detached, match="captured by a test"):
            await job.result()
        assert captured.assert_enqueued(send, to="a@b.c").options.delay == 60
        assert_enqueued(send, to="d@e.f", subject="Hello")
        assert_not_enqueued(other)
        with pytest.raises(AssertionError, match=r"no call send\(to='x'\).*to='a@b.c'"):
            captured.assert_enqueued(send, to="x")
        with pytest.raises(AssertionError, match="no call of 'other'"):
            assert_enqueued(other)
        with pytest.raises(AssertionError, match="1 calls of 'send'"):
            captured.assert_not_enqueued(send, to="a@b.c")
        captured.clear()
        assert captured.calls_of(send) == []
    with pytest.raises(InvalidOption, match="not in a mode for tests"):
        assert_enqueued(send)


async def test_wrong_modes_are_refused() -> None:
    app = make_app()
    with pytest.raises(InvalidOption, match="inline"):
        app.testing("online")  # type: ignore[arg-type]
    with app.testing("capture") as captured, pytest.raises(InvalidOption, match="entered already"):
        captured.__enter__()


# --- compositions ---------------------------------------------------------------------------------------------------


async def test_compositions_run_inline() -> None:
    app = make_app()

    @app.task
    async def start(n: int) -> int:
        return n

    @app.task
    async def double(n: int, by: int = 2) -> int:
        return n * by

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(attempts=1)
    async def fail(n: int) -> int:
        raise ValueError("broken")

    with app.testing("inline") as captured:
        assert await (await chain(start.bind(5), double, double).enqueue()).result() == 20
        jobs = await parallel(start.bind(1), start.bind(2)).enqueue()
        assert await jobs.result(timeout=5) == [1, 2]
        then = parallel_then([start.bind(1), start.bind(2), start.bind(3)], total)
        assert await (await then.enqueue()).result() == 6
        broken = await chain(start.bind(1), fail, double).enqueue()
        with pytest.raises(JobFailed, match="a child of job"):
            await broken.result()
        assert len(captured.calls_of(double)) == 3


async def test_compositions_that_cannot_be_are_refused() -> None:
    app = make_app()

    @app.task
    async def nothing() -> int:
        return 1

    @app.task
    async def two(a: int, b: int) -> int:
        return a + b

    @app.task(queue="list:x")
    async def listed() -> int:
        return 1

    with pytest.raises(InvalidOption, match="has no argument for the result"):
        chain(nothing.bind(), nothing)
    with pytest.raises(InvalidOption, match="needs b, too"):
        chain(nothing.bind(), two)
    with pytest.raises(InvalidOption, match="flows are for BullMQ queues"):
        chain(listed.bind(), two)
    with pytest.raises(InvalidOption, match="are none"):
        parallel_then([], two)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"give task\.bind"):
        parallel(nothing)  # type: ignore[arg-type]
