"""Writing DataFrames as jobs, and acting on jobs that a query selected."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.servers import Server
from tests.spark.makers import Factories
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys


def write(frame: Any, server: Any, prefix: str, **options: Any) -> None:
    frame.write.format("toril").options(**{"url": server, "prefix": prefix, **options}).mode("append").save()


def numbers(spark: SparkSession, count: Any, partitions: Any = 2) -> Any:
    rows = spark.range(0, count, 1, partitions)
    return rows.select(F.lit("send").alias("name"), F.struct(F.col("id").alias("n")).alias("data"))


@pytest.fixture
def client(valkey: Server) -> Iterator[Any]:
    with valkey.client() as client:
        yield client


def jobs_in(client: Any, keys: Any) -> Any:
    ids = client.lrange(keys.wait, 0, -1)
    return {one.decode(): client.hgetall(keys.job(one.decode())) for one in ids}


def test_rows_become_jobs_that_node_understands(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    write(numbers(spark, 50), valkey_url, prefix, queue="emails")
    keys = QueueKeys("emails", prefix)
    jobs = jobs_in(client, keys)
    assert sorted(json.loads(job[b"data"])["n"] for job in jobs.values()) == list(range(50))
    assert {job[b"name"] for job in jobs.values()} == {b"send"}
    assert json.loads(next(iter(jobs.values()))[b"opts"])["attempts"] == 3
    assert client.hget(keys.meta, "version") == b"bullmq:5.62.0"
    assert client.zcard(keys.marker) == 1
    assert not list(client.scan_iter(keys.toril("ledger*"))), "the ledger of a write that ended is dropped"


def test_columns_are_options_and_the_other_columns_are_the_data(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.createDataFrame(
        [("a", 1, 60.0, None, 7), ("b", 2, None, 5, None)],
        "job_id string, n int, delay double, priority int, attempts int",
    )
    write(rows, valkey_url, prefix, queue="options", name="import")
    keys = QueueKeys("options", prefix)
    assert client.zrange(keys.delayed, 0, -1) == [b"a"]
    assert client.zrange(keys.prioritized, 0, -1) == [b"b"]
    assert json.loads(client.hget(keys.job("a"), "data")) == {"n": 1}
    options = json.loads(client.hget(keys.job("a"), "opts"))
    assert (options["attempts"], options["delay"], options["jobId"]) == (7, 60_000, "a")


def test_a_column_group_is_the_group_of_the_job(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.createDataFrame(
        [("a", "one"), ("b", "one"), ("c", None)], "job_id string, group string"
    ).coalesce(1)
    write(rows, valkey_url, prefix, queue="groups", name="import")
    keys = QueueKeys("groups", prefix)
    assert client.zrange(keys.prioritized, 0, -1) == [b"a", b"b"]
    assert client.lrange(keys.wait, 0, -1) == [b"c"]
    options = json.loads(client.hget(keys.job("b"), "opts"))
    assert (options["group"], options["priority"]) == ({"id": "one"}, 32)


def test_data_can_be_json_text_a_map_or_a_struct(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.sql(
        """select 'x' as name, '{"deep":[1,{"a":null}]}' as data, 'text' as queue
           union all select 'x', to_json(map('k', 2)), 'map'"""
    )
    write(rows, valkey_url, prefix)
    write(
        spark.sql("select 'x' as name, map('k', named_struct('z', 1.5D)) as data"),
        valkey_url,
        prefix,
        queue="struct",
    )
    values = {
        q: next(iter(jobs_in(client, QueueKeys(q, prefix)).values()))[b"data"]
        for q in ("text", "map", "struct")
    }
    assert values == {"text": b'{"deep":[1,{"a":null}]}', "map": b'{"k":2}', "struct": b'{"k":{"z":1.5}}'}


def test_a_write_that_is_started_again_under_its_run_name_adds_nothing(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    keys = QueueKeys("once", prefix)
    write(numbers(spark, 500), valkey_url, prefix, queue="once", run="import-1")
    first = {job.decode() for job in client.lrange(keys.wait, 0, -1)}
    for one in list(first)[:100]:  # finished and removed meanwhile
        client.lrem(keys.wait, 1, one)
        client.delete(keys.job(one))
    write(numbers(spark, 500), valkey_url, prefix, queue="once", run="import-1")
    assert client.llen(keys.wait) == 400
    write(numbers(spark, 500), valkey_url, prefix, queue="once", run="import-2")
    assert client.llen(keys.wait) == 900


def test_rows_in_another_order_are_the_same_rows(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    keys = QueueKeys("order", prefix)
    for descending in (False, True):
        rows = numbers(spark, 300, partitions=1).orderBy(
            F.col("data.n").desc() if descending else F.col("data.n")
        )
        write(rows.coalesce(1), valkey_url, prefix, queue="order", run="r")
    assert client.llen(keys.wait) == 300


def test_equal_rows_are_different_jobs(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.range(0, 40, 1, 2).select(F.lit("same").alias("name"), F.lit("{}").alias("data"))
    for _ in range(2):
        write(rows, valkey_url, prefix, queue="equal", run="r")
    assert client.llen(QueueKeys("equal", prefix).wait) == 40


def test_rows_that_are_no_jobs_are_set_aside_with_a_reason(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = spark.createDataFrame(
        [("good", "{}", None), (None, "{}", None), ("bad", "{not json", None), ("bad", "{}", -1)],
        "name string, data string, attempts int",
    )
    write(rows, valkey_url, prefix, queue="rejects")
    assert client.llen(QueueKeys("rejects", prefix).wait) == 1
    options = {"url": valkey_url, "prefix": prefix, "table": "rejects", "queues": "rejects"}
    reasons = [row.reason for row in spark.read.format("toril").options(**options).load().collect()]
    assert len(reasons) == 3
    assert sorted(reason.partition(":")[0] for reason in reasons) == ["attempts", "data", "name"]


def test_a_strict_write_fails_at_the_first_bad_row(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.createDataFrame([("bad", "{not json")], "name string, data string")
    with pytest.raises(Exception, match="data: is not JSON"):
        write(rows, valkey_url, prefix, queue="strict", on_reject="fail")
    assert client.llen(QueueKeys("strict", prefix).wait) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'add a column "queue"'),
        ({"queue": "a", "op": "sing"}, "op: cannot be 'sing'"),
        ({"queue": "a:b"}, "queue: contains"),
        ({"queue": "a", "rate": "fast"}, "rate: cannot be 'fast'"),
        ({"queue": "a", "op": "retry"}, "needs the column 'job_id'"),
    ],
)
def test_a_write_that_cannot_succeed_is_refused_before_the_first_row(
    spark: SparkSession, valkey_url: str, prefix: str, options: Any, message: Any
) -> None:
    with pytest.raises(Exception, match=message):
        write(numbers(spark, 1), valkey_url, prefix, **options)


def test_the_rate_holds_over_all_tasks(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    began = time.monotonic()
    write(numbers(spark, 600), valkey_url, prefix, queue="slow", rate="200", batch="20")
    # A second of work may be ahead of the clock, so 600 rows at 200 a second take at least two.
    assert time.monotonic() - began >= 1.9
    assert client.llen(QueueKeys("slow", prefix).wait) == 600


def test_a_full_queue_makes_the_writer_wait_until_it_gives_up(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    with pytest.raises(Exception, match="add workers, or raise max_waiting"):
        write(
            numbers(spark, 300),
            valkey_url,
            prefix,
            queue="full",
            max_waiting="100",
            wait_timeout="0.5",
            batch="50",
        )
    assert client.llen(QueueKeys("full", prefix).wait) == 100


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_rows_become_envelopes_of_list_and_stream_queues(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, kind: Any
) -> None:
    rows = numbers(spark, 30).withColumn("max_attempts", F.lit(7))
    for _ in range(2):
        write(rows, valkey_url, prefix, queue="jobs.generic", kind=kind, run="r")
    if kind == "list":
        texts = client.lrange(ListKeys("jobs.generic", prefix).queue, 0, -1)
    else:
        entries = client.xrange(StreamKeys("jobs.generic", prefix).stream)
        texts = [fields[b"envelope"] for _, fields in entries]
    envelopes = [json.loads(text) for text in texts]
    assert sorted(one["payload"]["n"] for one in envelopes) == list(range(30))
    assert {(one["task_type"], one["max_attempts"], one["attempts"]) for one in envelopes} == {("send", 7, 0)}


def test_a_replayed_micro_batch_adds_no_job_twice(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    numbers(spark, 200).write.parquet(str(source))

    def run() -> None:
        stream = spark.readStream.schema("name string, data struct<n: long>").parquet(str(source))
        writer = stream.writeStream.format("toril").options(url=valkey_url, prefix=prefix, queue="stream")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    for commit in (checkpoint / "commits").glob("*[0-9]*"):
        commit.unlink()
    run()
    assert client.llen(QueueKeys("stream", prefix).wait) == 200


def test_failed_jobs_that_a_query_selects_are_retried_once(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, factory: Factories
) -> None:
    queue = factory("retry")
    queue.add(40)
    queue.work(fail=0.5)
    options = {"url": valkey_url, "prefix": prefix, "table": "jobs", "queues": "retry"}
    jobs = spark.read.format("toril").options(**options).load()
    failed = jobs.where("state = 'failed' and failed_reason like 'order %'").select("queue", "job_id").cache()
    count = failed.count()
    assert count == queue.outcomes["failed"] > 0
    for _ in range(2):  # the second write finds nothing to do
        write(failed, valkey_url, prefix, op="retry")
    assert client.llen(queue.keys.wait) == count
    assert client.zcard(queue.keys.failed) == 0


def test_jobs_are_removed_once(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, factory: Factories
) -> None:
    queue = factory("remove")
    ids = queue.add(20)
    rows = spark.createDataFrame([(one,) for one in ids[:15]] + [("orphan",)], "job_id string")
    write(rows, valkey_url, prefix, queue="remove", op="remove")
    assert client.llen(queue.keys.wait) == 5


def test_dead_letters_are_replayed_once_with_all_their_attempts(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    from toril.protocol.envelope import DeadLetter, Envelope

    keys = StreamKeys("jobs.browser", prefix)
    for number in range(6):
        envelope = Envelope.new("extract", {"n": number}).after_attempt()
        letter = DeadLetter.from_envelope(envelope, "permanent_error", "boom" if number % 2 else "bust")
        client.xadd(keys.dlq, {"envelope": letter.to_bytes()})
    options = {"url": valkey_url, "prefix": prefix, "table": "dlq", "queues": "jobs.browser"}
    chosen = (
        spark.read.format("toril")
        .options(**options)
        .load()
        .where("last_error = 'boom'")
        .select("queue", "id")
        .cache()
    )
    assert chosen.count() == 3
    for _ in range(2):
        write(chosen, valkey_url, prefix, kind="stream", op="replay")
    again = [json.loads(fields[b"envelope"]) for _, fields in client.xrange(keys.stream)]
    assert Counter(one["payload"]["n"] for one in again) == {1: 1, 3: 1, 5: 1}
    assert {one["attempts"] for one in again} == {0}
    assert client.xlen(keys.dlq) == 3


def test_a_write_says_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    from toril.spark.sinks._sender import Tally
    from toril.spark.sinks.options import SinkOptions
    from toril.spark.sinks.writers import _report

    with caplog.at_level(logging.WARNING, logger="toril.spark"):
        _report(SinkOptions(queue="a"), Tally(added=3, rejected=1, reasons=["name: is missing"]))
    assert "3 added, 0 known, 1 rejected, 0 skipped: name: is missing" in caplog.text


def test_the_columns_of_sql_literals_are_numbers(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    """SQL's 60.0 is a decimal: as an option it is seconds, as data it keeps its digits."""
    rows = spark.sql(
        "select 'welcome' as name, named_struct('price', 12.50, 'none', map()) as data, 60.0 as delay"
    )
    write(rows, valkey_url, prefix, queue="decimals")
    keys = QueueKeys("decimals", prefix)
    (job,) = client.zrange(keys.delayed, 0, -1)
    assert client.hget(keys.job(job.decode()), "data") == b'{"price":12.50,"none":{}}'
    assert client.hget(keys.job(job.decode()), "delay") == b"60000"


def test_structs_are_backoffs_removals_and_deduplication(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.sql(
        """select 'x' as name, id as n, named_struct('type', 'fixed', 'delay', 2.5) as backoff,
                  named_struct('count', 10) as remove_on_complete, 'one' as deduplication from range(3)"""
    )
    write(rows, valkey_url, prefix, queue="structs")
    (job,) = jobs_in(client, QueueKeys("structs", prefix)).values()
    options = json.loads(job[b"opts"])
    assert options["backoff"] == {"type": "fixed", "delay": 2500}
    assert options["removeOnComplete"] == {"count": 10}
    assert job[b"deid"] == b"one"


def test_a_variant_is_the_json_that_it_holds(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = spark.sql("""select 'x' as name, parse_json('{"a":[1,{"b":null}]}') as data""")
    write(rows, valkey_url, prefix, queue="variant")
    (job,) = jobs_in(client, QueueKeys("variant", prefix)).values()
    assert json.loads(job[b"data"]) == {"a": [1, {"b": None}]}


NUMBERS = """select 'x' as name, named_struct('small', 7, 'large', 9007199254740993, 'price', 0.10BD,
             'long', 12345678901234567890.123456789012345678BD, 'deep', array(map('k', -9007199254740993))) as data"""


@pytest.mark.parametrize("kind", ["bullmq", "stream"])
def test_large_integers_and_decimals_keep_their_digits_or_become_text(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, kind: str
) -> None:
    for numbers in ("digits", "text"):
        write(spark.sql(NUMBERS), valkey_url, prefix, queue=f"jobs.{numbers}", kind=kind, numbers=numbers)
    texts = [data_of(client, prefix, f"jobs.{numbers}", kind) for numbers in ("digits", "text")]
    long = "12345678901234567890.123456789012345678"
    assert (
        f'"large":9007199254740993,"price":0.10,"long":{long},"deep":[{{"k":-9007199254740993}}]' in texts[0]
    )
    assert (
        f'"small":7,"large":"9007199254740993","price":"0.10","long":"{long}","deep":[{{"k":"-9007199254740993"}}]'
        in texts[1]
    )


def data_of(client: Any, prefix: str, queue: str, kind: str) -> str:
    """The data of the one job of a queue, as it is written."""
    if kind == "bullmq":
        (job,) = jobs_in(client, QueueKeys(queue, prefix)).values()
        return str(job[b"data"].decode())
    ((_, fields),) = client.xrange(StreamKeys(queue, prefix).stream)
    return str(fields[b"envelope"].decode())


def test_a_number_in_a_variant_keeps_its_digits(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    exact = '{"a":0.1234567890123456789012345678,"b":1.5}'
    write(spark.sql(f"select 'x' as name, parse_json('{exact}') as data"), valkey_url, prefix, queue="exact")
    assert data_of(client, prefix, "exact", "bullmq") == exact


def test_a_slow_rate_is_remembered_between_its_rows(valkey: Server, valkey_url: str, prefix: str) -> None:
    from toril.commands.bulk_enqueue import Admission, Admitted, Reject, Row, Wait, enqueue_once
    from toril.transport import BlockingTransport

    keys, rate = QueueKeys("slowly", prefix), Admission(run="r", ledger_ms=60_000, rate=0.01)
    rows = [Row(b"%016d" % number, Reject("r", b"{}")) for number in range(2)]
    with BlockingTransport(valkey_url) as transport, valkey.client() as client:
        assert transport.run(enqueue_once(keys, rows, rate)) == Admitted([True, True])
        assert transport.run(enqueue_once(keys, rows, rate)) == Admitted([False, False]), (
            "what is known costs nothing"
        )
        answer = transport.run(enqueue_once(keys, [Row(b"%016d" % 2, Reject("r", b"{}"))], rate))
        assert isinstance(answer, Wait)
        assert answer.ms > 190_000
        assert client.pttl(keys.toril("rate:run:r")) > answer.ms, (
            "forgotten earlier, the rate would be exceeded"
        )
