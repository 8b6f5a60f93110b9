"""Reading queues as tables and streams."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.servers import Server
from tests.spark.makers import Factories
from toril.lake.tables import GAP_EVENT


def read(spark: SparkSession, server: Any, prefix: str, **options: Any) -> Any:
    return spark.read.format("toril").options(**{"url": server, "prefix": prefix, **options}).load()


def stream_once(
    spark: SparkSession, url: Any, prefix: str, checkpoint: Any, sink: Any, **options: Any
) -> None:
    reader = spark.readStream.format("toril").option("url", url).option("prefix", prefix).options(**options)
    query = (
        reader.load()
        .writeStream.foreachBatch(lambda frame, batch: sink.append((batch, frame.collect())))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_every_event_of_a_queue_is_a_row(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("emails")
    queue.add(40)
    queue.work(fail=0.2, retry=0.3)
    rows = read(spark, valkey_url, prefix, queues="emails").collect()
    assert len(rows) == queue.entries_added
    assert Counter(row.event for row in rows)["added"] == 40
    assert all(row.name is None for row in rows if row.event != "added")
    assert {row.returnvalue for row in rows if row.event == "completed"} == {'{"ok":true}'}


def test_a_pattern_finds_queues_and_a_hundred_of_them_fit_in_few_tasks(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    for number in range(30):
        factory(f"q{number}").add(2)
    frame = read(spark, valkey_url, prefix, queues="q*")
    assert frame.select("queue").distinct().count() == 30
    assert frame.rdd.getNumPartitions() == 1


def test_a_large_stream_is_read_by_many_tasks_without_loss(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("large")
    queue.add(3000)
    frame = read(spark, valkey_url, prefix, queues="large", rows_per_task="1000")
    assert frame.rdd.getNumPartitions() == 6
    assert frame.select("id").distinct().count() == queue.entries_added == 6000


def test_what_was_trimmed_is_one_gap_row_with_the_exact_number(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("trimmed")
    queue.add(100)
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=37, approximate=False)
    rows = read(spark, valkey_url, prefix, queues="trimmed").collect()
    gaps = [row for row in rows if row.event == GAP_EVENT]
    assert [gap.lost for gap in gaps] == [200 - 37]
    assert gaps[0].ts == min(row.ts for row in rows if row.event != GAP_EVENT)
    assert len(rows) - 1 + gaps[0].lost == queue.entries_added


def test_an_event_that_nobody_knows_is_kept_with_its_fields(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("strange")
    with valkey.client() as client:
        client.xadd(
            queue.keys.events, {"event": "sung", "jobId": "1", "melody": "do re \u266b", "delay": "soon"}
        )
        client.xadd(queue.keys.events, {b"event": b"\xff\xfe", b"jobId": b"2"})
    first, second = read(spark, valkey_url, prefix, queues="strange").orderBy("id").collect()
    assert (first.event, first.extra, first.delay_until) == ("sung", '{"melody": "do re \u266b"}', None)
    assert second.event == "\ufffd\ufffd"


def test_a_stream_reads_in_limited_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue, batches = factory("stream"), list[Any]()
    queue.add(250)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="stream", max_rows="200")
    assert [len(rows) for _, rows in batches] == [200, 200, 100]
    queue.add(10)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="stream", max_rows="200")
    ids = [row.id for _, rows in batches for row in rows]
    assert len(ids) == len(set(ids)) == queue.entries_added == 520


def test_events_trimmed_between_two_runs_are_counted(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue, batches = factory("late"), list[Any]()
    queue.add(10)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="late")
    queue.add(100)
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=30, approximate=False)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="late")
    rows = [row for _, part in batches for row in part]
    lost = sum(row.lost for row in rows if row.event == GAP_EVENT)
    assert lost == 200 - 30
    assert len([row for row in rows if row.event != GAP_EVENT]) + lost == queue.entries_added


def test_a_stream_that_was_deleted_and_began_anew_is_read_from_its_beginning(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue, batches = factory("phoenix"), list[Any]()
    queue.add(50)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="phoenix")
    with valkey.client() as client:
        client.delete(queue.keys.events)
        queue.add(5)
        client.xtrim(queue.keys.events, maxlen=8, approximate=False)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="phoenix")
    second = batches[1][1]
    assert Counter(row.event for row in second) == {"added": 4, "waiting": 4, GAP_EVENT: 2}
    gaps = {json.loads(row.extra)["reason"]: row for row in second if row.event == GAP_EVENT}
    assert {reason: row.lost for reason, row in gaps.items()} == {"recreated": None, "trimmed": 2}
    assert {row.ts for row in gaps.values()} == {min(row.ts for row in second if row.event != GAP_EVENT)}


def test_a_batch_whose_commit_entry_was_deleted_is_read_again_to_the_same_rows(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue, batches = factory("again"), list[Any]()
    queue.add(20)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="again")
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    (tmp_path / "c" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    queue.add(5)
    stream_once(spark, valkey_url, prefix, tmp_path / "c", batches, queues="again")
    assert batches[0][0] == batches[1][0] == 0
    assert {row.id for row in batches[0][1]} == {row.id for row in batches[1][1]}
    assert len(batches[2][1]) == 10
    shutil.rmtree(tmp_path / "c")


def test_jobs_are_rows_with_their_state_and_all_their_fields(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("jobs")
    queue.add(30)
    queue.work(limit=20, fail=0.3)
    queue.add(4, delay=60_000)
    active = queue.take(2)
    rows = read(spark, valkey_url, prefix, table="jobs", queues="jobs").collect()
    states = Counter(row.state for row in rows)
    assert states["active"] == 2
    assert states["delayed"] == 4
    assert states["waiting"] == 8
    assert states["completed"] + states["failed"] == 20
    assert len({row.job_id for row in rows}) == len(rows) == 34
    failed = next(row for row in rows if row.state == "failed")
    assert failed.failed_reason.startswith("order ")
    assert failed.worker == "factory-1"
    assert failed.attempts_started == 1
    assert {row.job_id for row in rows if row.state == "active"} == set(active)
    only = read(
        spark, valkey_url, prefix, table="jobs", queues="jobs", states="failed", columns="job_id,state"
    )
    assert only.columns == ["job_id", "state"]
    assert only.count() == states["failed"]


def test_log_lines_are_rows(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("logs")
    first, second = queue.add(2)
    with valkey.client() as client:
        client.rpush(queue.keys.logs(first), "one", "two")
        client.rpush(queue.keys.logs(second), "three")
    rows = read(spark, valkey_url, prefix, table="logs", queues="logs").orderBy("job_id", "line").collect()
    assert [(row.job_id, row.line, row.text) for row in rows] == [
        (first, 0, "one"),
        (first, 1, "two"),
        (second, 0, "three"),
    ]


def test_entries_of_a_stream_queue_and_its_dead_letters_are_rows(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str
) -> None:
    envelope = (
        '{"job_id":"j1","task_type":"extract","attempts":1,"max_attempts":5,"payload":{"url":"x"},'
        '"meta":{"correlation_id":"c","user_id":null,"enqueue_ts":"2026-01-01T00:00:00Z","source":"api"}}'
    )
    dead = (
        envelope[:-1] + ',"dlq_ts":"2026-01-02T00:00:00Z","dlq_reason":"permanent_error","last_error":"boom"}'
    )
    with valkey.client() as client:
        client.xadd(f"{prefix}:prod:stream:jobs.browser", {"envelope": envelope})
        client.xadd(f"{prefix}:prod:stream:jobs.browser", {"envelope": "no envelope"})
        client.xadd(f"{prefix}:prod:stream:jobs.browser:dlq", {"envelope": dead})
    rows = read(spark, valkey_url, prefix, table="stream", queues="jobs.*").orderBy("id").collect()
    assert [(row.job_id, row.task_type, row.payload) for row in rows] == [
        ("j1", "extract", '{"url":"x"}'),
        (None,) * 3,
    ]
    assert rows[1].raw == "no envelope"
    letter = read(spark, valkey_url, prefix, table="dlq", queues="jobs.browser").collect()[0]
    assert (letter.dlq_reason, letter.last_error, letter.attempts) == ("permanent_error", "boom", 1)


def test_a_cluster_is_read_on_all_its_nodes(
    spark: SparkSession, cluster: Any, cluster_url: Any, prefix: str
) -> None:
    from tests.spark.factory import Factory

    counts = {}
    for name in ("a", "b", "c", "d"):
        with Factory(cluster_url, name, prefix) as queue:
            queue.add(5)
            counts[name] = queue.entries_added
    rows = read(spark, cluster_url, prefix, queues="*").groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in rows} == counts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": "nobody"}, "no queue 'nobody'"),
        ({"queus": "a"}, "'queus' is not known"),
        ({"table": "tables"}, "cannot be 'tables'"),
        ({"table": "jobs", "states": "happy"}, "cannot be 'happy'"),
        ({"queues": "a", "since": "yesterday"}, "is not a time"),
        ({"queues": "a", "url": "http://x"}, "an unknown scheme"),
    ],
)
def test_a_wrong_option_is_refused_with_a_remedy(
    spark: SparkSession, valkey_url: str, prefix: str, options: Any, message: Any
) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, valkey_url, prefix, **options).count()


def test_only_events_can_be_streamed(spark: SparkSession, valkey_url: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("toril").option("url", valkey_url).option("table", "jobs").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="cannot be streamed"):
        query.awaitTermination()


def test_events_can_be_counted_by_time(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("time")
    queue.add(10)
    rows = read(spark, valkey_url, prefix, queues="time")
    last = rows.agg(F.max("ts").alias("last")).select(F.unix_millis("last").alias("ms")).first().ms
    assert read(spark, valkey_url, prefix, queues="time", since=str(last + 1)).count() == 0
    assert read(spark, valkey_url, prefix, queues="time", until=str(last + 1)).count() == queue.entries_added


def test_a_time_includes_its_millisecond_at_both_ends(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("moments")
    with valkey.client() as client:
        for name in ("1700000000001-0", "1700000000002-0", "1700000000002-7", "1700000000003-0"):
            client.xadd(queue.keys.events, {"event": "sung"}, id=name)
    bounds = {"since": "1700000000002", "until": "2023-11-14T22:13:20.002Z"}
    rows = read(spark, valkey_url, prefix, queues="moments", **bounds).orderBy("id").collect()
    assert [row.id for row in rows] == ["1700000000002-0", "1700000000002-7"]


@pytest.mark.parametrize("table", ["stream", "dlq"])
def test_entries_are_read_by_time(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, table: Any
) -> None:
    key = f"{prefix}:prod:stream:jobs.timed" + (":dlq" if table == "dlq" else "")
    with valkey.client() as client:
        for ms in range(1, 6):
            client.xadd(key, {"envelope": "{}"}, id=f"{ms}-0")
    options = {"table": table, "queues": "jobs.timed", "since": "2", "until": "4"}
    rows = read(spark, valkey_url, prefix, **options).orderBy("id").collect()
    assert [row.id for row in rows] == ["2-0", "3-0", "4-0"]


def test_finished_jobs_are_read_by_time(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories
) -> None:
    queue = factory("finished")
    queue.add(6)
    queue.work(limit=3)
    options = {"table": "jobs", "queues": "finished", "states": "completed"}
    last = read(spark, valkey_url, prefix, **options).agg(F.max(F.unix_millis("finished_at"))).first()[0]
    queue.work()
    assert read(spark, valkey_url, prefix, **options, until=str(last)).count() >= 3
    assert read(spark, valkey_url, prefix, **options, since=str(last + 3_600_000)).count() == 0
    assert read(spark, valkey_url, prefix, **options, since=str(last)).count() >= 1
