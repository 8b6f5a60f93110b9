"""The tasks of an `App` on Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark import shop_tasks
from toril import App, sync
from toril.errors import InvalidOption
from toril.spark import SparkWorker
from toril.spark.worker.app_reference import AppReference


@pytest.fixture
def app(valkey_url: str, prefix: str) -> Iterator[App]:
    with shop_tasks.app.configured(redis=valkey_url, prefix=prefix):
        yield shop_tasks.app


def test_the_tasks_of_all_queues_run_on_executors_with_resources_of_the_lifespan(
    app: App, spark: SparkSession, valkey_url: str, prefix: str
) -> None:
    with (
        sync.Queue("orders", redis=valkey_url, prefix=prefix) as orders,
        sync.Queue("mails", redis=valkey_url, prefix=prefix) as mails,
    ):
        order = orders.add("order", {"item": "pen", "count": 2})
        mail = mails.add("greet", {"name": "Ada"})
        broken = orders.add("order", {"item": "pen"})
        done = SparkWorker(app, spark=spark, slice=5.0, tasks=2).run_once()
        assert (done.completed, done.failed) == (2, 1)
        assert order.wait_until_finished(timeout=5) == 6
        assert mail.wait_until_finished(timeout=5) == "hello Ada"
        failed = orders.get_job(broken.id)
        assert failed is not None and "count" in (failed.failed_reason or "")


def test_a_task_stands_for_its_queue(app: App, spark: SparkSession, valkey_url: str, prefix: str) -> None:
    with sync.Queue("mails", redis=valkey_url, prefix=prefix) as mails:
        mails.add("greet", {"name": "Ada"})
        worker = SparkWorker(shop_tasks.greet, spark=spark, slice=5.0, tasks=1)
        assert worker.options.queues == ("mails",)
        assert worker.run_once().completed == 1


def test_an_app_that_no_module_holds_is_refused() -> None:
    nameless = App(name="nameless")

    @nameless.task(queue="q")
    async def nothing() -> None: ...

    with pytest.raises(InvalidOption, match="in no module by a name"):
        SparkWorker(nameless)


def test_queues_and_engines_that_an_app_cannot_have_are_refused() -> None:
    with pytest.raises(InvalidOption, match="nope has no tasks"):
        SparkWorker("nope", shop_tasks.app)
    with pytest.raises(InvalidOption, match="the arguments of tasks"):
        SparkWorker(shop_tasks.app, engine="rows")
    with pytest.raises(InvalidOption, match="beside an app"):
        SparkWorker(shop_tasks.app, takes="pandas")
    with pytest.raises(InvalidOption, match="the app has 'bull'"):
        SparkWorker(shop_tasks.app, prefix="other")


def test_an_app_is_found_by_its_module_and_imported_from_its_folder() -> None:
    found = AppReference.of(shop_tasks.app)
    assert (found.module, found.attribute) == ("tests.spark.shop_tasks", "app")
    assert found.load() is shop_tasks.app
