"""Schedules that an app declares: the start of a worker makes the schedulers of its queues so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import Server
from toril import App, Queue


def make_app(url: str, prefix: str, *declared: dict[str, Any], name: str = "shop") -> App:
    app = App(name=name, redis=url, prefix=prefix)

    @app.task(queue="reports", attempts=4, unique=True)
    async def report(day: str = "monday") -> None: ...

    for one in declared:
        day = one.pop("day", None)
        report.schedule(**one) if day is None else report.bind(day).schedule(**one)
    return app


@pytest.fixture
def queue(valkey: Server, prefix: str) -> Queue[Any]:
    return Queue("reports", redis=valkey.url, prefix=prefix)


async def start(app: App) -> None:
    async with app, app.worker():
        """Its start applies the schedules."""


async def test_schedules_are_made_changed_and_removed(valkey: Server, prefix: str, queue: Queue[Any]) -> None:
    async with queue:
        await queue.schedulers.upsert("other", cron="0 5 * * *")
        await start(make_app(valkey.url, prefix, {"cron": "0 3 * * *", "tz": "Europe/Zurich"}))
        found = await queue.schedulers.get("report")
        assert found is not None
        assert (found.cron, found.tz, found.data, found.options.attempts) == (
            "0 3 * * *",
            "Europe/Zurich",
            {"day": "monday"},
            4,
        )
        await start(
            make_app(valkey.url, prefix, {"every": 3600, "day": "friday"}, {"id": "second", "every": 60})
        )
        changed = await queue.schedulers.get("report")
        assert changed is not None
        assert (changed.cron, changed.every, changed.data) == (None, 3600, {"day": "friday"})
        assert {one.id for one in await queue.schedulers.list()} == {"other", "report", "second"}
        await start(make_app(valkey.url, prefix, {"id": "second", "every": 60}))
        assert {one.id for one in await queue.schedulers.list()} == {"other", "second"}
        await start(make_app(valkey.url, prefix))
        assert {one.id for one in await queue.schedulers.list()} == {"other"}


async def test_a_schedule_that_did_not_change_is_not_touched(
    valkey: Server, prefix: str, queue: Queue[Any]
) -> None:
    async with queue:
        declared: dict[str, Any] = {"every": 3600}
        await start(make_app(valkey.url, prefix, dict(declared)))
        first = await queue.schedulers.get("report")
        jobs = {job.id for job in await queue.get_jobs()}
        await start(make_app(valkey.url, prefix, dict(declared)))
        assert await queue.schedulers.get("report") == first
        assert {job.id for job in await queue.get_jobs()} == jobs


async def test_apps_do_not_remove_the_schedules_of_others(
    valkey: Server, prefix: str, queue: Queue[Any]
) -> None:
    async with queue:
        await start(make_app(valkey.url, prefix, {"every": 3600, "id": "one"}, name="one"))
        await start(make_app(valkey.url, prefix, {"every": 3600, "id": "two"}, name="two"))
        assert {one.id for one in await queue.schedulers.list()} == {"one", "two"}


async def test_a_scheduled_run_calls_the_task(valkey: Server, prefix: str) -> None:
    app = App(redis=valkey.url, prefix=prefix)
    ran: list[str] = []

    @app.task(queue="reports")
    async def report(day: str = "monday") -> None:
        ran.append(day)

    report.bind("friday").schedule(every=3600, limit=1)
    async with app, app.worker() as worker:
        while not ran:
            await worker.run_until_idle()
    assert ran == ["friday"]
