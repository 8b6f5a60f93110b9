"""Jobs processed on executors: the loop engine of `SparkWorker`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.servers import Server
from toril import Backoff, JobOptions, sync
from toril.errors import InvalidOption, QueueMissing, TransientError
from toril.spark import SparkWorker
from toril.spark.worker.work_summary import WorkSummary

Run = Callable[..., WorkSummary]


@pytest.fixture
def queue(valkey_url: str, prefix: str) -> Iterator[sync.Queue]:
    with sync.Queue("scores", redis=valkey_url, prefix=prefix) as made:
        yield made


@pytest.fixture
def make(spark: SparkSession, valkey_url: str, prefix: str) -> Callable[..., SparkWorker]:
    def made(handler: Any, **options: Any) -> SparkWorker:
        given = {"slice": 5.0, "tasks": 2, **options}
        return SparkWorker("scores", handler, spark=spark, redis=valkey_url, prefix=prefix, **given)

    return made


def add(queue: sync.Queue, count: int, **options: Any) -> list[str]:
    wanted = JobOptions(**options)
    jobs = queue.add_bulk([("score", {"x": n, "y": 1.5}, wanted) for n in range(count)])
    return [one.id for one in jobs]


def results(queue: sync.Queue, ids: list[str]) -> list[Any]:
    found = []
    for one in ids:
        job = queue.get_job(one)
        assert job is not None
        found.append(job.returnvalue)
    return found


def reasons(queue: sync.Queue, ids: list[str]) -> set[str]:
    found = set()
    for one in ids:
        job = queue.get_job(one)
        assert job is not None
        found.add(job.failed_reason or "")
    return found


def test_a_handler_of_arrow_batches_settles_each_job_with_its_result(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    def double(batch: pa.Table) -> pa.Array:
        import pyarrow.compute as pc

        return pc.multiply(pc.struct_field(batch["data"], "x"), 2)

    ids = add(queue, 1000)
    summary = make(double, data_schema="x bigint, y double").run_once()
    assert (summary.completed, summary.failed) == (1000, 0)
    assert results(queue, ids) == [2 * n for n in range(1000)]
    assert queue.get_job_counts().active == 0


def test_a_handler_of_pandas_batches_gets_parsed_data_as_columns(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    def product(batch: pd.DataFrame) -> pd.Series:  # type: ignore[type-arg,unused-ignore]
        return batch["data.x"] * batch["data.y"]

    ids = add(queue, 50)
    assert make(product, data_schema="x bigint, y double").run_once().completed == 50
    assert results(queue, ids) == [1.5 * n for n in range(50)]


def test_an_ordinary_handler_runs_on_the_executors_with_its_job(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    async def handle(job: Any) -> int:
        await job.log("seen")
        return int(job.data["x"]) + 1

    ids = add(queue, 20)
    assert make(handle, concurrency=5).run_once().completed == 20
    assert results(queue, ids) == list(range(1, 21))
    assert queue.get_job_logs(ids[0]).lines == ["seen"]


def test_a_row_can_fail_for_good_or_be_retried_with_the_backoff_of_its_job(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    def judge(batch: pd.DataFrame) -> pd.DataFrame:
        first = batch["attempts_made"] == 0
        is_bad = batch["data.x"] == 1
        return pd.DataFrame(
            {
                "job_id": batch["job_id"],
                "result": batch["attempts_made"],
                "error": [
                    "bad" if bad else "busy" if new else None for bad, new in zip(is_bad, first, strict=True)
                ],
                "error_kind": ["permanent" if bad else "transient" for bad in is_bad],
            }
        )

    ids = add(queue, 3, attempts=2, backoff=Backoff.fixed(0.1))
    summary = make(judge, data_schema="x bigint").run_once()
    assert (summary.completed, summary.failed) == (2, 1)
    assert [results(queue, [one])[0] for one in (ids[0], ids[2])] == [1, 1]
    assert reasons(queue, [ids[1]]) == {"bad"}


def nothing(batch: pa.Table) -> None:
    """Returns nothing."""


def too_few(batch: pa.Table) -> Any:
    return [1]


def twice(batch: pa.Table) -> Any:
    return pa.table({"job_id": batch["job_id"].to_pylist() * 2, "result": [1] * (2 * batch.num_rows)})


def others(batch: pa.Table) -> Any:
    return pa.table({"job_id": ["x"] * batch.num_rows, "result": [1] * batch.num_rows})


def no_json(batch: pa.Table) -> Any:
    return [object()] * batch.num_rows


def no_columns(batch: pa.Table) -> Any:
    return batch.select(["name"])


async def coroutine(batch: pa.Table) -> Any:
    return [1] * batch.num_rows


def raises(batch: pa.Table) -> Any:
    raise LookupError("no model")


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (nothing, "returned nothing"),
        (too_few, "1 results for 7 jobs"),
        (twice, "this job twice"),
        (others, "no row for this job, and 1 rows of other jobs"),
        (no_json, "result"),
        (no_columns, "a table with the columns name"),
        (coroutine, "is a coroutine function"),
        (raises, "no model"),
    ],
)
def test_what_a_handler_must_not_return_fails_its_jobs_with_the_reason(
    make: Callable[..., SparkWorker], queue: sync.Queue, handler: Any, reason: str
) -> None:
    ids = add(queue, 7)
    summary = make(handler, tasks=1).run_once()
    assert summary.failed == 7
    (found,) = reasons(queue, ids)
    assert reason in found
    assert queue.get_job_counts().active == 0


def test_data_that_does_not_fit_the_schema_fails_its_own_job_only(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    def echo(batch: pa.Table) -> Any:
        return [row["x"] for row in batch["data"].to_pylist()]

    good = add(queue, 3)
    bad = queue.add("score", {"x": "many"}).id
    summary = make(echo, data_schema="x bigint", tasks=1).run_once()
    assert (summary.completed, summary.failed) == (3, 1)
    assert results(queue, good) == [0, 1, 2]
    assert "does not fit data_schema" in reasons(queue, [bad]).pop()


def test_a_transient_error_of_a_batch_retries_its_jobs(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    def flaky(batch: pa.Table) -> Any:
        if 0 in batch["attempts_made"].to_pylist():
            raise TransientError("the model is being loaded")
        return batch["attempts_made"]

    ids = add(queue, 5, attempts=2, backoff=Backoff.fixed(0.1))
    assert make(flaky).run_once().completed == 5
    assert set(results(queue, ids)) == {1}


def test_stop_ends_a_running_worker_and_leaves_no_job_active(
    make: Callable[..., SparkWorker], queue: sync.Queue
) -> None:
    async def handle(job: Any) -> None:
        import asyncio

        await asyncio.sleep(0.2)

    ids = add(queue, 400)
    worker = make(handle, concurrency=4, slice=60.0)
    queue_is_used = threading.Event()

    def stop_when_used() -> None:
        while queue.get_job_counts().completed == 0:
            queue_is_used.wait(0.05)
        worker.stop()

    stopper = threading.Thread(target=stop_when_used)
    stopper.start()
    summary = worker.run()
    stopper.join()
    counts = queue.get_job_counts()
    assert summary.completed > 0
    assert counts.active == 0
    assert counts.completed + counts.waiting == len(ids)
    assert counts.completed == summary.completed


def test_a_task_that_dies_is_started_again_and_its_jobs_are_given_back(
    make: Callable[..., SparkWorker], queue: sync.Queue, valkey: Server, prefix: str
) -> None:
    def die_once(batch: pa.Table) -> Any:
        import os
        from pathlib import Path

        mark = Path(batch["name"][0].as_py())
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return batch["attempts_made"]

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        jobs = queue.add_bulk([(f"{folder}/died", {"x": n}) for n in range(10)])
        summary = make(die_once, tasks=1).run_once()
        assert (summary.completed, summary.restarts) == (10, 1)
    assert set(results(queue, [one.id for one in jobs])) == {0}, "the attempt that died does not count"
    with valkey.client() as client:
        stalled = [client.hget(queue.keys.job(one.id), "stc") for one in jobs]
    assert set(stalled) == {None}, "they were given back, and did not wait for the stalled sweep"


def test_workers_on_executors_report_themselves(make: Callable[..., SparkWorker], queue: sync.Queue) -> None:
    async def seen(job: Any) -> list[str]:
        return [job.processed_by]

    ids = add(queue, 2)
    worker = make(seen)
    worker.run_once()
    assert all(one[0].startswith(f"{worker.id}.1.") for one in results(queue, ids))


def test_a_missing_queue_is_an_error(make: Callable[..., SparkWorker]) -> None:
    with pytest.raises(QueueMissing, match="no queue 'scores'"):
        make(nothing).run_once()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "fast"}, "engine: is 'fast'"),
        ({"takes": "rows"}, "takes: is 'rows'"),
        ({"max_jobs": 0}, "max_jobs: is 0"),
        ({"slice": 0.1}, "slice: is 0.1"),
        ({"metrics": object()}, "metrics: cannot be sent"),
        ({"concurency": 3}, "concurency"),
        ({"engine": "rows", "takes": "job"}, "the handler takes a job"),
        ({"engine": "loop", "takes": "dataframe"}, "takes a DataFrame"),
    ],
)
def test_a_bad_option_is_refused_before_spark_is_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        SparkWorker("scores", nothing, **options)
