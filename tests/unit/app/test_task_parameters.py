"""Which functions become tasks, and which of their parameters are injected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from toril import App, Context, Depends, InvalidOption, Job
from toril.app import BlockingContext
from toril.errors import UnknownOption


class Database: ...


@dataclass
class Resources:
    database: Database


async def lifespan(_app: App) -> AsyncIterator[Resources]:
    yield Resources(Database())


async def session(_context: Context[Resources]) -> AsyncIterator[str]:
    yield "session"


def test_parameters_are_injected_by_type_and_by_depends() -> None:
    app = App(lifespan=lifespan)

    @app.task
    async def ship(
        ctx: Context[Resources],
        job: Job[Any],
        db: Database,
        order: int,
        one: str = Depends(session),
        two: Annotated[str, Depends(session)] = "",
    ) -> None: ...

    assert set(ship.parameters.injected) == {"ctx", "job", "db", "one", "two"}
    assert ship.arguments.encode(ship.arguments.bind((7,), {})) == b'{"order":7}'


def test_types_that_are_defined_in_a_function_are_found() -> None:
    @dataclass
    class Local:
        n: int

    @App().task
    async def use(local: Local) -> Local:
        return local

    assert use.arguments.decode(b'{"local":{"n":1}}') == {"local": Local(1)}


async def no_name(*args: int) -> None: ...
async def any_name(**named: int) -> None: ...
async def only_position(n: int, /) -> None: ...
async def reserved(_v: int) -> None: ...
async def blocking_context(ctx: BlockingContext) -> None: ...
def asyncio_context(ctx: Context) -> None: ...
async def needs_unknown(n: int) -> int:
    return n


async def wrong_provider(value: int = Depends(needs_unknown)) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_name, "args: has no name"),
        (any_name, "named: has no name"),
        (only_position, "n: has no name"),
        (reserved, "_v: begins with an underscore"),
        (blocking_context, "use toril.Context"),
        (asyncio_context, "use toril.sync.Context"),
        (wrong_provider, "'n' that cannot be injected"),
    ],
)
def test_a_function_that_cannot_be_a_task_is_refused_with_its_parameter(function: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        App().task(function)


def loop_a(value: int = 0) -> int:
    return value


def test_a_dependency_on_itself_is_refused() -> None:
    loop_a.__defaults__ = (Depends(loop_a),)

    async def task(value: int = Depends(loop_a)) -> None: ...

    with pytest.raises(InvalidOption, match="depends on itself"):
        App().task(task)


def test_two_tasks_of_one_name_are_refused() -> None:
    app = App()
    app.task(name="send")(lambda n: n)
    with pytest.raises(InvalidOption, match="'send' is the name of another task"):
        app.task(name="send")(lambda n: n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atempts": 3}, "did you mean attempts"),
        ({"max_retries": 3}, "attempts"),
        ({"job_timout": 3}, "did you mean job_timeout"),
        ({"retry_on": ("x",)}, "give classes of errors"),
        ({"version": 0}, "version"),
        ({"executor": "async"}, "plain"),
        ({"queue": "set:x"}, "no known kind"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        App().task(**options)(lambda n: n)


def test_options_of_queues_are_checked_when_they_are_said() -> None:
    app = App()
    with pytest.raises(UnknownOption, match="did you mean concurrency"):
        app.queue("emails", concurency=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="concurrency"):
        app.queue("emails", concurrency=0)
    with pytest.raises(InvalidOption, match="reliable"):
        app.queue("emails", reliable=True)
    app.queue("list:emails", reliable=True)


def test_a_task_in_a_process_cannot_need_resources() -> None:
    with pytest.raises(InvalidOption, match="runs in a process and needs a resource"):

        @App(lifespan=lifespan).task(executor="process")
        def compute(db: Database) -> None: ...


def test_a_schedule_without_required_arguments_is_refused() -> None:
    app = App()

    @app.task
    async def report(day: str) -> None: ...

    with pytest.raises(InvalidOption, match=r"report\.bind\(day=…\)\.schedule"):
        report.schedule(cron="0 3 * * *")
    with pytest.raises(InvalidOption, match="cron"):
        report.bind("monday").schedule(cron="0 3 * *")
    report.bind("monday").schedule(cron="0 3 * * *")
    with pytest.raises(InvalidOption, match="declared already"):
        report.bind("tuesday").schedule(cron="0 4 * * *")


def test_the_server_by_the_name_of_another_library_is_refused_with_ours() -> None:
    with pytest.raises(InvalidOption, match="broker: is not an option of App; it is called redis here"):
        App(broker="redis://127.0.0.1")  # type: ignore[call-arg]
