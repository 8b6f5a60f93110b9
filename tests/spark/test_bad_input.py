"""Mistakes of users: each is refused with a remedy, or stored as a reject with its reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.servers import Server, free_port
from tests.spark.makers import Factories
from toril.errors import InvalidOption, RedisUnavailable
from toril.protocol.keys import QueueKeys
from toril.spark.sinks.columns import check_columns
from toril.spark.sinks.options import SinkOptions
from toril.spark.sources.options import SourceOptions


def write(frame: Any, **options: Any) -> None:
    frame.write.format("toril").options(**options).mode("append").save()


def read(spark: SparkSession, **options: Any) -> Any:
    return spark.read.format("toril").options(**options).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:6379"}, "has no scheme; write redis:// before the host"),
        ({"url": ""}, "has no scheme"),
        ({"url": "redis://host:port"}, "has no number where the port's belongs"),
        ({"queues": " , "}, 'queues: is empty; name queues, or give "\\*" for all'),
        ({"columns": "day"}, "columns: cannot be 'day'; one of queue, id"),
        ({"states": "failed"}, "states: has no meaning for table=events; it is for jobs, logs"),
        ({"table": "jobs", "starting": "latest"}, "starting: has no meaning for table=jobs"),
        ({"since": "2026-01-02", "until": "2026-01-01"}, "since: is later than until"),
        ({"starting": "tomorrow"}, "starting: 'tomorrow' is not a time; write 2026-01-31T12:00:00Z"),
        ({"kind": "list"}, "kind: cannot be 'list'; one of bullmq"),
        ({"table": "stream", "kind": "bullmq"}, "kind: cannot be 'bullmq'; one of stream, list"),
        ({"table": "stream", "kind": "list", "since": "2026-01-01"}, "not for lists, which hold no times"),
        ({"max_rows": "0"}, "max_rows: cannot be '0'; give a whole number above zero"),
        ({"discover_every": "soon"}, "discover_every: cannot be 'soon'; give seconds"),
        ({"missing": "perhaps"}, "missing: cannot be 'perhaps'; one of error, ignore"),
        ({"header": "true"}, "option: 'header' is not known; one of "),
    ],
)
def test_a_reader_refuses_what_makes_no_sense(options: Any, message: Any) -> None:
    with pytest.raises(InvalidOption, match=message):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://x"}, "begins with http://, an unknown scheme; use one of redis://"),
        ({"batch": "0.5"}, "batch: cannot be '0.5'; give a whole number"),
        ({"rate": "inf"}, "rate: cannot be 'inf'"),
        ({"ledger_hours": "nan"}, "ledger_hours: cannot be 'nan'"),
        ({"max_waiting": "-1"}, "max_waiting: cannot be '-1'"),
        ({"run": "a b"}, "run: cannot be 'a b'; use up to 128 letters"),
        ({"op": "replay"}, 'replay is for dead letters; set kind to "stream" or "list"'),
        ({"op": "retry", "kind": "list"}, "retry is for BullMQ queues; use op=replay"),
        ({"op": "retry", "state": "waiting"}, "state: cannot be 'waiting'; one of failed, completed"),
        ({"numbers": "roman"}, "numbers: cannot be 'roman'; one of digits, text"),
        ({"on_reject": "sing"}, "on_reject: cannot be 'sing'; one of report, fail"),
        ({"queus": "a"}, "'queus' is not known"),
    ],
)
def test_a_writer_refuses_what_makes_no_sense(options: Any, message: Any) -> None:
    with pytest.raises(InvalidOption, match=message):
        SinkOptions.parse({"queue": "a", **options})


def test_a_server_that_is_away_is_named_before_any_task_begins(spark: SparkSession) -> None:
    away = f"redis://:hidden@127.0.0.1:{free_port()}"
    said = r"redis://127\.0\.0\.1:\d+: Redis cannot be reached.*check option\(\"url\""
    with pytest.raises(Exception, match=said) as reading:
        read(spark, url=away, queues="a").count()
    with pytest.raises(Exception, match=said) as writing:
        write(spark.sql("select 'a' as name"), url=away, queue="a")
    assert "hidden" not in f"{reading.value}{writing.value}"


def test_a_wrong_password_is_said_and_not_shown(spark: SparkSession, start_valkey: Any) -> None:
    server = start_valkey()
    with server.client() as client:
        client.config_set("requirepass", "right")
    url = f"redis://:wr0ng@127.0.0.1:{server.port}"
    with pytest.raises(Exception, match="check user and password") as refused:
        read(spark, url=url, queues="a").count()
    assert "wr0ng" not in str(refused.value)


def test_a_schema_that_the_table_does_not_have_is_refused(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    factory("schema").add(1)
    reader = spark.read.format("toril").options(url=valkey_url, prefix=prefix, queues="schema")
    assert reader.schema("event string, queue string").load().count() == 2
    with pytest.raises(Exception, match="schema: events has no column 'melody'; leave the schema out"):
        spark.read.format("toril").options(url=valkey_url).schema("melody string").load().count()
    with pytest.raises(Exception, match=r"'ts' is timestamp.*, not string; leave the schema out and cast"):
        spark.read.format("toril").options(url=valkey_url).schema("ts string").load().count()


def test_rows_with_impossible_options_are_rejected_one_by_one(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str
) -> None:
    rows = spark.createDataFrame(
        [
            ("good", None, None),
            ("a", -5, None),
            ("b", 3_000_000, None),
            ("c", None, "x:y"),
            ("d", None, "123"),
            ("e", None, "meta"),
            ("", None, None),
        ],
        "name string, priority int, job_id string",
    )
    options = {"url": valkey_url, "prefix": prefix, "queue": "impossible"}
    write(rows, **options)
    with valkey.client() as client:
        assert client.llen(QueueKeys("impossible", prefix).wait) == 1
    rejects = read(spark, url=valkey_url, prefix=prefix, table="rejects", queues="impossible").collect()
    assert sorted(row.reason.partition(";")[0] for row in rejects) == [
        "job_id: '123' is an integer",
        "job_id: 'meta' is a reserved word",
        'job_id: contains ":"',
        "name: is missing",
        "priority: is -5",
        "priority: is 3000000",
    ]


def test_rows_without_a_queue_are_set_aside_and_the_others_go_on(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str
) -> None:
    rows = spark.createDataFrame([("a", None), ("b", "x:y"), ("c", "fine")], "name string, queue string")
    write(rows, url=valkey_url, prefix=prefix)
    with valkey.client() as client:
        assert client.llen(QueueKeys("fine", prefix).wait) == 1
    options = {"url": valkey_url, "prefix": prefix, "table": "rejects", "queues": "toril.rejects"}
    reasons = {row.reason.partition(";")[0] for row in read(spark, **options).collect()}
    assert reasons == {"queue: is missing", 'queue: contains ":"'}


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_rows_that_are_no_envelopes_can_be_read_as_rejects(
    spark: SparkSession, valkey_url: str, prefix: str, kind: Any
) -> None:
    rows = spark.createDataFrame([(None, "{}"), ("a", "{bad"), ("b", "[1]")], "name string, data string")
    write(rows, url=valkey_url, prefix=prefix, queue="jobs.bad", kind=kind)
    for queues in ("jobs.bad", "jobs.*"):
        options = {"url": valkey_url, "prefix": prefix, "table": "rejects", "kind": kind, "queues": queues}
        reasons = {row.reason.partition(":")[0] for row in read(spark, **options).collect()}
        assert reasons == {"name", "data", "payload"}


def test_rejects_that_were_removed_for_newer_ones_are_counted(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str
) -> None:
    from toril.commands.bulk_enqueue import rejects_key

    keys = QueueKeys("many", prefix)
    with valkey.client() as client:
        for number in range(5):
            client.xadd(rejects_key(keys), {"reason": "name: is missing", "row": str(number)})
        client.xtrim(rejects_key(keys), maxlen=2, approximate=False)
    options = {"url": valkey_url, "prefix": prefix, "table": "rejects", "queues": "many"}
    rows = [(row.reason, row.row) for row in read(spark, **options).orderBy("id").collect()]
    assert rows == [
        ("toril.gap: 3 older rows were dropped", None),
        ("name: is missing", "3"),
        ("name: is missing", "4"),
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("array(parse_json('1'))", "data\\[\\]: is a variant inside of another value; use to_json"),
        ("map(array(1), 2)", "data: is a map whose keys are no plain values"),
        ("interval '1' month", "data: is an interval of months, which have no length; cast it to string"),
    ],
)
def test_columns_that_json_cannot_hold_are_refused(
    spark: SparkSession, valkey_url: str, prefix: str, column: Any, message: Any
) -> None:
    with pytest.raises(Exception, match=message):
        write(
            spark.sql(f"select 'a' as name, {column} as data"), url=valkey_url, prefix=prefix, queue="typed"
        )


def columns(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("jobId", "bullmq", "jobId: is no option of a job, .* would be dropped; rename it to job_id"),
        ("atempts", "bullmq", "atempts: .*rename it to attempts"),
        ("removeOnComplete", "bullmq", "rename it to remove_on_complete"),
        ("maxAttempts", "stream", "rename it to max_attempts"),
        ("priority", "list", "priority: .*job options are correlation_id"),
        ("melody", "bullmq", "melody: .*job options are attempts, .*put it into data, or drop it"),
    ],
)
def test_a_column_beside_data_that_means_nothing_is_refused(column: str, kind: str, message: str) -> None:
    schema = columns(f"name string, data string, `{column}` string")
    options = SinkOptions.parse({"queue": "a", "kind": kind})
    with pytest.raises(InvalidOption, match=message):
        check_columns(options, schema)
    check_columns(options, columns(f"name string, `{column}` string"))  # there it is the data
    check_columns(replace(options, key=(column,)), schema)  # there it tells rows apart


def test_a_write_with_a_column_that_would_be_dropped_fails_before_the_first_row(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str
) -> None:
    with pytest.raises(Exception, match="jobId: is no option of a job"):
        write(
            spark.sql("select 'a' as name, '{}' as data, 'x' as jobId"),
            url=valkey_url,
            prefix=prefix,
            queue="q",
        )
    with valkey.client() as client:
        assert client.exists(QueueKeys("q", prefix).meta) == 0


@pytest.mark.parametrize(
    ("key", "message"),
    [("id", "key: there is no column 'id'; name some of name, data"), ("data.id.x", "no column 'data.id.x'")],
)
def test_a_key_that_names_no_column_is_refused(key: str, message: str) -> None:
    schema = columns("name string, data struct<id: long>")
    with pytest.raises(InvalidOption, match=message):
        check_columns(SinkOptions.parse({"queue": "a", "key": key}), schema)
    with pytest.raises(InvalidOption, match="key: names no column"):
        SinkOptions.parse({"queue": "a", "key": " , "})


def test_an_act_that_found_nothing_to_do_says_so(caplog: pytest.LogCaptureFixture) -> None:
    from toril.spark.sinks._sender import Tally
    from toril.spark.sinks.writers import _report

    with caplog.at_level(logging.INFO, logger="toril.spark"):
        _report(SinkOptions(queue="a", op="retry"), Tally(skipped=3))
        _report(SinkOptions(queue="a", op="retry"), Tally(added=2, skipped=1))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "0 done, 3 skipped, 0 rejected; those skipped are gone" in caplog.text


def test_a_pipeline_without_its_server_says_so_before_spark_starts(tmp_path: Path) -> None:
    from toril.errors import RedisUnavailable
    from toril.spark.pipeline import Pipeline, PipelineOptions

    pipeline = Pipeline(PipelineOptions(redis=f"redis://127.0.0.1:{free_port()}", lake=tmp_path))
    with pytest.raises(RedisUnavailable, match="check option"):
        pipeline.run_once()
    assert not pipeline._context.sessions.is_there
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_that_loses_its_server_names_the_cause(
    spark: SparkSession, start_valkey: Callable[..., Server], prefix: str, tmp_path: Path
) -> None:
    from toril.errors import PipelineFailed
    from toril.spark.pipeline import Pipeline, PipelineOptions

    server = start_valkey()
    plain = PipelineOptions(redis=server.url, prefix=prefix, lake=tmp_path / "lake")
    directly, by_query = (
        Pipeline(options, spark=spark)
        for options in (plain, replace(plain, checkpoint=str(tmp_path / "checkpoint")))
    )
    server.kill()
    away = r"redis://127\.0\.0\.1:\d+: Redis cannot be"
    with pytest.raises(RedisUnavailable, match=f"^{away}"):
        directly.ingest()
    with pytest.raises(PipelineFailed, match=f"^events could not be read: {away}"):
        by_query.ingest()


def test_the_cause_is_found_in_the_words_of_others() -> None:
    from toril.spark.pipeline.supervisor.spark_errors import cause_of

    ours = "toril.errors.StoreUnavailable: Redis is away; go on"
    wrapped = f"[STREAM_FAILED] Query [id = 1]\n  File x\n{ours}\n at y"
    assert cause_of(RuntimeError(wrapped)) == "Redis is away; go on"
    assert cause_of(RuntimeError("first\nsecond")) == "first"
    race = "[STREAM_FAILED] Query\n_internal.CommitFailedError: a newer version exists\n at y"
    assert cause_of(RuntimeError(race)) == "CommitFailedError: a newer version exists"
