"""Jobs taken as rows (`table=work`) and settled by rows (`op=settle`)."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.servers import Server
from toril import Backoff, JobOptions, sync

Options = dict[str, Any]


@pytest.fixture
def queue(valkey_url: str, prefix: str) -> Iterator[sync.Queue]:
    with sync.Queue("rows", redis=valkey_url, prefix=prefix) as made:
        yield made


@pytest.fixture
def place(valkey_url: str, prefix: str) -> Options:
    return {"url": valkey_url, "prefix": prefix}


def add(queue: sync.Queue, count: int, **options: Any) -> list[str]:
    wanted = JobOptions(**options)
    return [one.id for one in queue.add_bulk([("score", {"x": n}, wanted) for n in range(count)])]


def work(spark: SparkSession, place: Options, **options: Any) -> DataFrame:
    given = {"table": "work", "queues": "rows", "run": "one", **place, **options}
    return spark.read.format("toril").options(**given).load()


def settle(rows: DataFrame, place: Options, **options: Any) -> None:
    rows.write.format("toril").options(**{"op": "settle", **place, **options}).mode("append").save()


def doubled(rows: DataFrame) -> DataFrame:
    return rows.withColumn("result", F.get_json_object("data", "$.x").cast("long") * 2)


def drain(
    spark: SparkSession, place: Options, folder: Path, change: Callable[[DataFrame], DataFrame], **more: Any
) -> Any:
    """Runs a stream of work until nothing is left."""
    options = {"table": "work", "queues": "rows", "max_jobs": "100", "worker": "w", **place, **more}
    rows = change(spark.readStream.format("toril").options(**options).load())
    sink = rows.writeStream.format("toril").options(**{"op": "settle", **place})
    query = sink.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def results(queue: sync.Queue, ids: list[str]) -> list[Any]:
    return [job.returnvalue if (job := queue.get_job(one)) else None for one in ids]


def finals(queue: sync.Queue, client: Any) -> Counter[str]:
    """How often each job ended."""
    found: Counter[str] = Counter()
    for _, fields in client.xrange(queue.keys.events):
        if fields[b"event"] in (b"completed", b"failed"):
            found[fields[b"jobId"].decode()] += 1
    return found


def test_a_batch_read_takes_jobs_and_a_write_settles_them(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    ids = add(queue, 1200)
    rows = work(spark, place)
    assert rows.columns == [
        "queue", "job_id", "token", "position", "name", "data", "attempts_made", "opts", "group", "added_at",
    ]  # fmt: skip
    settle(doubled(rows), place, run="one")
    assert results(queue, ids) == [2 * n for n in range(1200)]
    assert queue.get_job_counts().active == 0


def test_two_actions_and_two_reads_of_a_run_get_the_same_jobs(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    ids = add(queue, 700)
    rows = work(spark, place, max_jobs="600")
    first = {row.job_id: row.token for row in rows.collect()}
    assert first == {row.job_id: row.token for row in rows.collect()}
    assert first == {row.job_id: row.token for row in work(spark, place, max_jobs="600").collect()}
    assert set(first) == set(ids[:600])
    assert queue.get_job_counts().active == 600
    settle(doubled(rows), place, run="one")
    assert rows.count() == 0, "the run took its jobs, and takes no other"
    assert queue.get_job_counts().waiting == 100


def test_data_can_be_parsed_and_a_job_that_does_not_fit_fails_with_the_reason(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    good = add(queue, 3)
    bad = queue.add("score", {"x": "many"}).id
    rows = work(spark, place, data_schema="x bigint")
    settle(rows.withColumn("result", F.struct(F.col("data.x").alias("got"))), place)
    assert results(queue, good) == [{"got": 0}, {"got": 1}, {"got": 2}]
    job = queue.get_job(bad)
    assert job is not None and "does not fit data_schema" in (job.failed_reason or "")


def test_errors_of_rows_retry_or_fail_by_their_kind(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    ids = add(queue, 3, attempts=3, backoff=Backoff.fixed(60.0))
    rows = work(spark, place).withColumn("x", F.get_json_object("data", "$.x").cast("int"))
    judged = rows.select(
        "queue", "job_id", "token", "position",
        F.expr("case x when 0 then 'busy' when 1 then 'bad' else 'odd' end").alias("error"),
        F.expr("case x when 0 then 'transient' when 1 then 'permanent' end").alias("error_kind"),
        F.lit(None).cast("string").alias("result"),
    )  # fmt: skip
    settle(judged, place)
    counts = queue.get_job_counts()
    assert (counts.delayed, counts.failed, counts.active) == (1, 2, 0)
    jobs = [queue.get_job(one) for one in ids]
    assert [(one.failed_reason, one.attempts_made) for one in jobs if one] == [
        ("busy", 1),
        ("bad", 1),
        ("odd", 1),
    ]


def test_rows_that_a_run_drops_are_given_back_in_their_order(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    ids = add(queue, 10)
    rows = doubled(work(spark, place)).where("result % 4 = 0")
    settle(rows, place, run="one")
    assert queue.get_job_counts().completed == 5
    assert [one.id for one in queue.get_jobs(["waiting"], ascending=True)] == ids[1::2]
    job = queue.get_job(ids[1])
    assert job is not None and job.attempts_made == 0


def test_a_row_whose_lock_is_lost_is_refused_counted_and_readable(
    spark: SparkSession, queue: sync.Queue, place: Options, valkey: Server
) -> None:
    (job_id,) = add(queue, 1)
    rows = doubled(work(spark, place)).persist()
    assert rows.count() == 1
    with valkey.client() as client:
        client.set(queue.keys.lock(job_id), "another")
    settle(rows, place)
    rows.unpersist()
    assert queue.get_job_counts().active == 1
    rejects = spark.read.format("toril").options(**place, table="rejects", queues="rows").load().collect()
    assert [json.loads(row.row)["job_id"] for row in rejects] == [job_id]
    assert "not settled" in rejects[0].reason


def test_a_job_with_two_rows_and_a_result_that_is_no_json_fail_with_the_reason(
    spark: SparkSession, queue: sync.Queue, place: Options
) -> None:
    ids = add(queue, 2)
    rows = work(spark, place).persist()
    twice = rows.where(F.col("job_id") == ids[0])
    both = twice.union(twice).coalesce(1).withColumn("result", F.lit(1.0))
    settle(both, place)
    settle(rows.where(F.col("job_id") == ids[1]).withColumn("result", F.lit(float("nan"))), place)
    rows.unpersist()
    found = [job.failed_reason or "" for one in ids if (job := queue.get_job(one))]
    assert "twice" in found[0] and "result" in found[1]


def test_a_stream_settles_all_jobs_once_in_micro_batches(
    spark: SparkSession, queue: sync.Queue, place: Options, tmp_path: Path, valkey: Server
) -> None:
    ids = add(queue, 250)
    query = drain(spark, place, tmp_path / "c", doubled)
    assert results(queue, ids) == [2 * n for n in range(250)]
    assert len([one for one in query.recentProgress if one["numInputRows"]]) == 3
    with valkey.client() as client:
        assert set(finals(queue, client).values()) == {1}
        assert client.zcard(queue.keys.toril("work:leases")) <= 1


def test_a_replayed_micro_batch_settles_nothing_twice_and_takes_no_new_job(
    spark: SparkSession, queue: sync.Queue, place: Options, tmp_path: Path, valkey: Server
) -> None:
    add(queue, 100)
    folder = tmp_path / "c"
    drain(spark, place, folder, doubled)
    late = add(queue, 5)
    (folder / "commits" / "0").unlink()
    (folder / "commits" / ".0.crc").unlink(missing_ok=True)

    def nothing_new(rows: DataFrame) -> DataFrame:
        return doubled(rows).where(~F.col("job_id").isin(late))

    options = {"table": "work", "queues": "rows", "max_jobs": "100", "worker": "w", **place}
    rows = nothing_new(spark.readStream.format("toril").options(**options).load())
    sink = rows.writeStream.format("toril").options(**{"op": "settle", **place})
    query = sink.option("checkpointLocation", str(folder)).start()
    while not query.recentProgress:
        query.awaitTermination(1)
    query.stop()
    assert query.recentProgress[0]["batchId"] == 0
    assert query.recentProgress[0]["numInputRows"] == 0, "all its jobs are settled, and it takes no other"
    with valkey.client() as client:
        assert set(finals(queue, client).values()) == {1}


def test_a_micro_batch_that_died_after_half_of_its_settles_is_replayed_with_the_rest(
    spark: SparkSession, queue: sync.Queue, place: Options, tmp_path: Path, valkey: Server
) -> None:
    ids = add(queue, 60)
    mark = tmp_path / "mark"

    def half_then_die(rows: DataFrame) -> DataFrame:
        def step(batches: Iterator[Any]) -> Iterator[Any]:
            yield from batches
            if not mark.exists():
                mark.touch()
                raise RuntimeError("the executor is gone")

        return doubled(rows.mapInArrow(step, rows.schema))

    with pytest.raises(PySparkException):
        drain(spark, place, tmp_path / "c", half_then_die)
    assert queue.get_job_counts().active == 60, "what a failed query held stays locked for its replay"
    late = add(queue, 4)
    drain(spark, place, tmp_path / "c", half_then_die)
    assert results(queue, ids) == [2 * n for n in range(60)]
    assert results(queue, late) == [0, 2, 4, 6]
    with valkey.client() as client:
        assert set(finals(queue, client).values()) == {1}
        assert {client.hget(queue.keys.job(one), "ats") for one in ids} == {b"1"}, "taken once"


def test_rows_that_a_stream_drops_are_given_back_at_the_commit_or_fail(
    spark: SparkSession, queue: sync.Queue, place: Options, tmp_path: Path
) -> None:
    ids = add(queue, 10)
    drain(spark, place, tmp_path / "c", lambda rows: doubled(rows).where("result < 8"), dropped="fail")
    counts = queue.get_job_counts()
    assert (counts.completed, counts.failed, counts.active) == (4, 6, 0)
    job = queue.get_job(ids[9])
    assert job is not None and job.failed_reason == "the query returned no row for this job"
    more = add(queue, 3)
    drain(spark, place, tmp_path / "d", lambda rows: doubled(rows).where("result < 0"))
    assert [one.id for one in queue.get_jobs(["waiting"], ascending=True)] == more
    shutil.rmtree(tmp_path / "d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": ""}, "run"),
        ({"queues": ""}, "queues"),
        ({"max_jobs": "0"}, "max_jobs"),
        ({"data_schema": "x nonsense"}, "data_schema"),
        ({"give_back": "later"}, "give_back"),
        ({"table": "work", "states": "failed"}, "'states' is not known"),
        ({"queues": "missing"}, "no queue 'missing'"),
    ],
)
def test_bad_options_of_work_are_refused(
    spark: SparkSession, queue: sync.Queue, place: Options, options: Options, message: str
) -> None:
    add(queue, 1)
    with pytest.raises(PySparkException, match=message):
        work(spark, place, **options).collect()


def test_a_settle_without_tokens_is_refused(spark: SparkSession, place: Options) -> None:
    with pytest.raises(PySparkException, match="op=settle needs the columns queue, job_id, token"):
        settle(spark.range(1).selectExpr("'a' as job_id", "1 as result"), place)
