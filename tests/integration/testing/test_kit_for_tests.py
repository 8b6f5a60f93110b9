"""The kit for tests of applications: fixtures, jobs without a server, the clock, draining."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from toril import App, Context, InvalidOption, Job, Queue, Worker
from toril.errors import Detached
from toril.testing import TestClock, drain, make_blocking_job, make_context, make_job

TESTS = """
from typing import Any

from toril import App, Queue, TransientError, Worker
from toril.testing import TestClock, drain

app = App()
ran: list[str] = []


@app.task(queue="emails")
async def send(to: str) -> str:
    ran.append(to)
    return to.upper()


async def test_a_queue_and_a_worker(toril_queue, toril_worker):
    async def handle(job):
        return job.data["n"] + 1

    async with toril_worker(handle):
        job = await toril_queue.add("count", {"n": 1})
        assert await job.wait_until_finished(10) == 2


async def test_the_namespace_is_new(toril_queue):
    assert (await toril_queue.get_job_counts()).completed == 0


async def test_an_app(toril_app):
    async with toril_app(app):
        job = await send.enqueue("a@b.c")
        await drain(app)
        assert await job.result(1) == "A@B.C"


def test_the_app_has_its_own_settings_again(toril_url):
    assert "redis" not in repr(app.connection.choice)


async def test_a_delay(toril_app, toril_clock):
    async with toril_app(app):
        job = await send.options(delay=3600).enqueue("late")
        await drain(app)
        assert await job.is_delayed()
        await toril_clock.advance(3600)
        await drain(app)
        assert ran[-1] == "late"
"""


def test_the_fixtures_are_there_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(tmp_path),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def test_the_example_has_tests_that_pass(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "examples" / "first_task"
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(tmp_path / "pytest.ini"))
    command = [sys.executable, "-B", "-m", "pytest", *options, str(folder)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout


def test_loading_the_plugin_imports_no_package_of_toril() -> None:
    program = "import toril.testing.plugin, sys; print([m for m in sys.modules if m[:6] == 'toril.' or m == 'redis'])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['toril.lazy_names', 'toril.testing', 'toril.testing.plugin']"


# --- jobs without a server ------------------------------------------------------------------------------------------


async def test_a_handler_is_tested_with_a_job_without_a_server() -> None:
    async def handle(job: Job[Any]) -> str:
        await job.update_progress(50, "half")
        await job.update_data({**job.data, "seen": True})
        return f"{job.name} {job.data['to']} {job.attempts_made} {job.max_attempts}"

    job = make_job("send", {"to": "a@b.c"}, attempts_made=2, attempts=5)
    assert await handle(job) == "send a@b.c 2 5"
    assert (job.progress, job.data["seen"], await job.get_logs()) == (50, True, ["half"])
    with pytest.raises(Detached, match="made by a test"):
        await job.remove()
    with pytest.raises(Detached):
        await job.wait_until_finished()


def test_a_plain_handler_is_tested_with_a_blocking_job() -> None:
    job = make_blocking_job(data={"n": 1}, job_id="seven")
    job.log("a")
    job.log("b")
    job.clear_logs(keep=1)
    assert (job.id, job.data, job.get_logs(), job.is_active()) == ("seven", {"n": 1}, ["b"], True)
    with pytest.raises(Detached):
        job.promote()


async def test_a_function_is_tested_with_a_context() -> None:
    app = App()

    @app.task(attempts=4)
    async def send(ctx: Context[dict[str, int]], to: str) -> int:
        await ctx.progress(100)
        return ctx.resources["n"] + ctx.attempt

    context = make_context(send, resources={"n": 5}, attempts_made=1, to="a@b.c")
    assert await send.function(context, "a@b.c") == 7
    assert (context.job.progress, context.is_last_attempt, dict(context.arguments)) == (
        100,
        False,
        {"to": "a@b.c"},
    )


# --- the clock ------------------------------------------------------------------------------------------------------


async def test_the_clock_makes_delayed_jobs_retries_and_schedules_due(valkey: Server, prefix: str) -> None:
    ran: list[int] = []

    async def handle(job: Job[Any]) -> None:
        ran.append(job.attempts_made)
        if job.name == "flaky" and job.attempts_made == 0:
            raise ConnectionError("once")

    with TestClock() as clock:
        async with (
            Queue("jobs", redis=valkey.url, prefix=prefix) as queue,
            Worker("jobs", handle, redis=valkey.url, prefix=prefix),
        ):
            delayed = await queue.add("late", delay=3600)
            await clock.advance(timedelta(hours=1), queue)
            await delayed.wait_until_finished(10)
            flaky = await queue.add("flaky", attempts=2, backoff=3600)
            while not await flaky.is_delayed():
                await flaky.refresh()
            await clock.advance(3700, queue)
            await flaky.wait_until_finished(10)
            await queue.schedulers.upsert("nightly", every=86_400, start=flaky.timestamp + timedelta(days=3))
            await clock.advance(timedelta(days=4), queue)
            while len(ran) < 4:
                await clock.advance(0, queue)
            assert clock.shift > timedelta(days=4)
    assert ran == [0, 0, 1, 0]
    assert TestClock().shift == timedelta(0)
    with pytest.raises(InvalidOption, match="give objects of Queue"):
        await TestClock().advance(1, "jobs")  # type: ignore[arg-type]


async def test_draining_runs_what_tasks_add_and_counts(valkey: Server, prefix: str) -> None:
    app = App(redis=valkey.url, prefix=prefix)

    @app.task(queue="first")
    async def first(n: int) -> None:
        await second.enqueue(n)

    @app.task(queue="second")
    async def second(n: int) -> None: ...

    async with app:
        await first.enqueue_many([first.bind(n) for n in range(3)])
        worker = await drain(app)
        assert (worker.processed, worker.failed) == (6, 0)
