"""What people meet in their first hour: names of other libraries, tracebacks, waits without a worker."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import toril
from tests.servers import Server
from toril import App, Context, Depends, InvalidOption, JobFailed, Queue, Worker, sync
from toril.app.middleware import Proceed
from toril.errors import UnknownOption

LIBRARY = str(Path(toril.__file__).parent)


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


# --- names of other libraries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("delay", "write await send.enqueue(…)"),
        ("apply_async", "write await send.options(delay=60).enqueue(…)"),
        ("send_with_options", "write await send.options(delay=60).enqueue(…)"),
        ("s", "write send.bind(…)"),
        ("retry", "raise TransientError in the task, or give @app.task(retry_on=(…,))"),
        ("request", "(in a plain function toril.sync.Context): send(ctx: Context, …)"),
    ],
)
def test_a_method_of_another_library_leads_to_the_one_here(name: str, remedy: str) -> None:
    made = App()

    @made.task
    async def send(to: str) -> None:
        """Is not run."""

    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; ") as error:
        getattr(send, name)
    assert remedy in str(error.value)
    assert not hasattr(send, "something_else")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("send_task", "app.tasks[NAME].enqueue(…)"),
        ("enqueue_job", "app.tasks[NAME].enqueue(…)"),
        ("run", "run its tasks with `toril worker MODULE:app`"),
        ("cron", "write TASK.schedule(cron=…)"),
    ],
)
def test_a_method_of_another_librarys_app_leads_to_the_one_here(name: str, remedy: str) -> None:
    for app in (App(), sync.App()):
        with pytest.raises(AttributeError, match=f"an App has no attribute '{name}'; ") as error:
            getattr(app, name)
        assert remedy in str(error.value)
        assert isinstance(app, App) or "await" not in str(error.value)
        assert not hasattr(app, "something_else")


def test_one_queue_is_given_as_a_list() -> None:
    app = App()

    @app.task(queue="emails")
    async def send(to: str) -> None:
        """Is not run."""

    with pytest.raises(InvalidOption, match=r"queues: is one string; give a list: \['emails'\]"):
        app.worker("emails")


def test_the_blocking_task_leads_there_without_await() -> None:
    blocking = sync.App()

    @blocking.task
    def send(to: str) -> None:
        """Is not run."""

    with pytest.raises(AttributeError, match=r"; write send\.enqueue\(…\)"):
        send.delay("a@b.c")  # type: ignore[attr-defined]


def test_options_of_celery_lead_to_those_here() -> None:
    made = App()
    with pytest.raises(UnknownOption, match="take a parameter of the type Context"):
        made.task(bind=True)  # type: ignore[call-overload]
    with pytest.raises(UnknownOption, match="it is called retry_on here"):
        made.task(autoretry_for=(OSError,))  # type: ignore[call-overload]
    with pytest.raises(
        UnknownOption, match=r"rate_limit: .*; it belongs to the queue: app\.queue\(name, rate"
    ):
        made.task(rate_limit="10/m")  # type: ignore[call-overload]


def test_options_of_schedules_lead_to_those_here() -> None:
    made, blocking = App(), sync.App()

    @made.task
    async def clean() -> None:
        """Is not run."""

    @blocking.task
    def sweep() -> None:
        """Is not run."""

    for one in (clean, clean.bind(), sweep):
        with pytest.raises(
            UnknownOption, match="timezone: is not an option of schedule; it is called tz here"
        ):
            one.schedule(cron="0 3 * * *", timezone="Europe/Berlin")  # type: ignore[call-arg]
        with pytest.raises(UnknownOption, match="give by name: cron, every, tz"):
            one.schedule("0 3 * * *")  # type: ignore[call-arg]


def test_an_error_inside_a_property_of_a_task_stays_what_it_is() -> None:
    made = App()

    @made.task
    async def send(to: Later) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Its annotation is never defined."""

    with pytest.raises(toril.InvalidOption, match="unknown name"):
        _ = send.parameters


# --- tracebacks -------------------------------------------------------------------------------------------------------


async def around(_: Context, proceed: Proceed) -> Any:
    return await proceed()


async def connection() -> AsyncIterator[int]:
    yield 1


async def test_the_stored_traceback_of_a_task_has_no_frame_of_toril(valkey: Server, prefix: str) -> None:
    app = App(redis=valkey.url, prefix=prefix, middleware=[around])

    def deeper() -> None:
        raise ValueError("wrong address")

    @app.task(queue="a")
    async def plain(to: str) -> None:
        deeper()

    @app.task(queue="a")
    async def injected(ctx: Context, to: str, one: int = Depends(connection)) -> None:
        deeper()

    @app.task(queue="a")
    def threaded(to: str) -> None:
        deeper()

    async with app, app.worker():
        for task in (plain, injected, threaded):
            job: Any = await task.enqueue("a@b.c")
            with pytest.raises(JobFailed) as failed:
                await job.result(20)
            (trace,) = failed.value.stacktrace
            assert LIBRARY not in trace, trace
            assert "in around" in trace and "in deeper" in trace
            assert trace.rstrip().endswith("ValueError: wrong address")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_on_a_terminal_a_traceback_has_its_lines_and_elsewhere_one(valkey: Server, prefix: str) -> None:
    logger = logging.getLogger(f"test.{prefix}")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        logger.addHandler(logging.StreamHandler(stream))

    async def handle(_: Any) -> None:
        raise ValueError("wrong\x1b[31m address\nERROR forged")

    async with (
        Queue("a", redis=valkey.url, prefix=prefix) as queue,
        Worker("a", handle, redis=valkey.url, prefix=prefix, logger=logger),
    ):
        job = await queue.add("send", {})
        with pytest.raises(JobFailed):
            await job.wait_until_finished(20)
    shown = terminal.getvalue().splitlines()
    start = next(place for place, line in enumerate(shown) if line.startswith("Job failed"))
    assert "traceback=" not in shown[start]
    assert shown[start + 1] == "    Traceback (most recent call last):"
    assert any(line.startswith('      File "') for line in shown)
    assert "\x1b" not in terminal.getvalue()
    assert not any(line.startswith("ERROR forged") for line in shown)
    (failed,) = [line for line in file.getvalue().splitlines() if line.startswith("Job failed")]
    assert "traceback=Traceback" in failed
    assert "retry_on=(…,) of a task" in failed


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_wait_in_vain_says_that_there_is_no_worker(app: App, valkey: Server, prefix: str) -> None:
    @app.task(queue="emails", delay=3600)
    async def send(to: str) -> None:
        """Is not run."""

    job = await send.enqueue("a@b.c")
    with pytest.raises(
        TimeoutError, match=r"did not finish within 0\.05 s; no worker of queue 'emails' is connected"
    ):
        await job.result(0.05)
    with sync.Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        found = queue.get_job(job.id)
        assert found is not None
        with pytest.raises(TimeoutError, match="no worker of queue 'emails' is connected"):
            found.wait_until_finished(0.05)
    async with app.worker():
        with pytest.raises(TimeoutError, match=r"did not finish within 0\.05 s$"):
            await job.result(0.05)
