"""Jobs processed on executors: the rows engine of `SparkWorker`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.servers import Server
from tests.waiting import wait_until
from toril import Backoff, JobOptions, sync
from toril.spark import SparkWorker

Make = Callable[..., SparkWorker]


@pytest.fixture
def queue(valkey_url: str, prefix: str) -> Iterator[sync.Queue]:
    with sync.Queue("scores", redis=valkey_url, prefix=prefix) as made:
        yield made


@pytest.fixture
def make(spark: SparkSession, valkey_url: str, prefix: str) -> Make:
    def made(handler: Any, **options: Any) -> SparkWorker:
        return SparkWorker("scores", handler, spark=spark, redis=valkey_url, prefix=prefix, **options)

    return made


def add(queue: sync.Queue, count: int, **options: Any) -> list[str]:
    wanted = JobOptions(**options)
    return [one.id for one in queue.add_bulk([("score", {"x": n}, wanted) for n in range(count)])]


def jobs(queue: sync.Queue, ids: list[str]) -> list[Any]:
    return [queue.get_job(one) for one in ids]


def test_a_handler_of_dataframes_can_join_its_jobs(
    make: Make, queue: sync.Queue, spark: SparkSession, valkey: Server
) -> None:
    def priced(rows: DataFrame) -> DataFrame:
        prices = rows.sparkSession.range(0, 300).selectExpr("id as x", "id * 1.5D as price")
        found = rows.withColumn("x", F.col("data.x")).join(prices, "x", "left")
        return found.select("queue", "job_id", "token", "position", F.col("price").alias("result"))

    ids = add(queue, 250)
    worker = make(priced, data_schema="x bigint", max_jobs=100)
    assert worker.engine == "rows"
    summary = worker.run_once()
    assert (summary.completed, summary.failed) == (250, 0)
    assert [one.returnvalue for one in jobs(queue, ids)] == [1.5 * n for n in range(250)]
    with valkey.client() as client:
        left = {key for key in client.scan_iter(queue.keys.toril("work:*")) if client.type(key) != b"list"}
    assert left == set(), "only closed leases are remembered, for a while"


def none(rows: DataFrame) -> None:
    """Returns nothing."""


def some(rows: DataFrame) -> Any:
    return rows.where("job_id = 'none'").withColumn("result", F.lit(1))


def other_rows(rows: DataFrame) -> Any:
    return rows.where("false").withColumn("result", F.lit(1))


def lacks(rows: DataFrame) -> Any:
    return rows.select("job_id")


def raises(rows: DataFrame) -> Any:
    raise LookupError("no model")


def unknown_column(rows: DataFrame) -> Any:
    return rows.withColumn("result", F.col("nothing"))


def udf_raises(rows: DataFrame) -> Any:
    broken = F.udf(lambda _: int("bad row"), "long")
    return rows.withColumn("result", broken("data"))


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (none, "returned nothing"),
        (some, "no row for this job"),
        (other_rows, "does not depend on its rows"),
        (lacks, "keep queue, job_id and token"),
        (raises, "no model"),
        (unknown_column, "nothing"),
        (udf_raises, "bad row"),
    ],
)
def test_what_a_handler_must_not_do_fails_its_jobs_with_the_reason(
    make: Make, queue: sync.Queue, handler: Any, reason: str
) -> None:
    ids = add(queue, 5)
    make(handler).run_once()
    counts = queue.get_job_counts()
    assert (counts.failed, counts.active, counts.waiting) == (5, 0, 0)
    (found,) = {one.failed_reason for one in jobs(queue, ids)}
    assert reason in found


def test_retries_are_awaited_until_nothing_is_left(make: Make, queue: sync.Queue) -> None:
    def second_time(rows: DataFrame) -> DataFrame:
        error = F.when(F.col("attempts_made") == 0, F.lit("busy"))
        return rows.select(
            *("queue", "job_id", "token", "position"),
            error.alias("error"),
            F.lit("transient").alias("error_kind"),
            F.col("attempts_made").alias("result"),
        )

    ids = add(queue, 4, attempts=2, backoff=Backoff.fixed(0.5))
    assert make(second_time).run_once().completed == 4
    assert {one.returnvalue for one in jobs(queue, ids)} == {1}


def test_stop_lets_the_micro_batch_finish_and_leaves_no_job_active(make: Make, queue: sync.Queue) -> None:
    begun = threading.Event()

    def slow(rows: DataFrame) -> DataFrame:
        begun.set()
        return rows.withColumn("result", F.lit(1))

    ids = add(queue, 30)
    worker = make(slow, max_jobs=10)

    def stop_when_begun() -> None:
        begun.wait(60)
        worker.stop()

    stopper = threading.Thread(target=stop_when_begun)
    stopper.start()
    summary = worker.run()
    stopper.join()
    counts = queue.get_job_counts()
    assert counts.active == 0
    assert counts.completed + counts.waiting == len(ids)
    assert summary.completed == counts.completed > 0


def test_a_query_that_fails_gives_back_its_jobs_and_is_started_again(make: Make, queue: sync.Queue) -> None:
    failures: list[int] = []

    def fails_once(rows: DataFrame) -> DataFrame:
        if not failures:
            failures.append(rows.count())
            raise PySparkRuntimeError("the connection to an executor broke")
        return rows.withColumn("result", F.lit(1))

    ids = add(queue, 6)
    summary = make(fails_once).run_once()
    assert failures == [6]
    assert (summary.completed, summary.restarts) == (6, 1)
    assert {one.attempts_made for one in jobs(queue, ids)} == {1}


def test_a_query_is_seen_as_a_worker_of_its_queue(make: Make, queue: sync.Queue) -> None:
    """By Node, bull-board and `toril top`: by the name of a connection, and by its report."""
    seen: list[str] = []

    def look(rows: DataFrame) -> DataFrame:
        wait_until(lambda: bool(queue.get_workers()), "a connection has the name of a worker")
        seen.extend(str(one.worker_id) for one in queue.get_workers())
        return rows.withColumn("result", F.lit(1))

    add(queue, 3)
    worker = make(look)
    assert worker.run_once().completed == 3
    assert seen == [worker.id]
