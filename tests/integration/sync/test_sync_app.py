"""`sync.App`: tasks without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.servers import Server
from toril import App, JobFailed, sync
from toril.app import chain
from toril.errors import Detached
from toril.testing import assert_enqueued


@dataclass
class Receipt:
    to: str


@pytest.fixture
def app(valkey: Server, prefix: str) -> Iterator[sync.App]:
    with sync.App(redis=valkey.url, prefix=prefix) as made:
        yield made


def test_a_task_is_enqueued_and_waited_for(app: sync.App) -> None:
    @app.task(queue="emails", attempts=2)
    def send(ctx: sync.Context, to: str) -> Receipt:
        ctx.log(f"to {to}")
        return Receipt(to)

    @app.task
    async def double(n: int) -> int:
        return n * 2

    with app.worker() as worker:
        job = send.enqueue("a@b.c")
        assert job.result(timeout=10) == Receipt("a@b.c")
        assert (job.get_logs(), job.options.attempts) == (["to a@b.c"], 2)
        assert [one.result(10) for one in double.enqueue_many([double.bind(1), double.bind(2)])] == [2, 4]
        assert send.options(delay=60).enqueue("x").is_delayed()
        assert app.enqueue(chain(double.bind(1), double.task)).result(10) == 4
        worker.run_until_idle()
        assert (worker.processed, worker.failed) == (5, 0)


def test_the_blocking_form_of_an_app_shares_its_tasks(valkey: Server, prefix: str) -> None:
    app = App(redis=valkey.url, prefix=prefix)

    @app.task(attempts=1)
    async def fail(n: int) -> int:
        raise ValueError(f"number {n}")

    task = sync.Task(fail)
    with task.app, sync.App(app) as other, other.worker(), pytest.raises(JobFailed, match="number 5"):
        task.enqueue(5).result(10)


def test_run_runs_in_this_thread_until_it_is_stopped(app: sync.App) -> None:
    seen: list[bool] = []

    @app.task
    def work() -> None:
        threading.Thread(target=worker.stop).start()
        seen.append(True)

    work.enqueue()
    worker = app.worker()
    worker.run()
    assert seen == [True]


def test_modes_for_tests_need_no_event_loop() -> None:
    app = sync.App(redis="redis://nowhere.invalid:1")

    @app.task
    def send(to: str) -> Receipt:
        return Receipt(to)

    with app, app.testing("inline"):
        assert send.enqueue("a").result() == Receipt("a")
        assert send("direct") == Receipt("direct")
    with app, app.testing("capture"):
        job = send.enqueue("b")
        assert_enqueued(send.task, to="b")
        with pytest.raises(Detached):
            job.result()
