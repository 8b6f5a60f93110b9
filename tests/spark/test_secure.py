"""Servers that ask for TLS, a password or a slot: sources, sinks and the pipeline; and a password shows nowhere."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.factory import Factory
from toril.lake import Lake
from toril.spark.pipeline import Pipeline, PipelineOptions

SECRET = "0pen-sesame"


def read(spark: SparkSession, url: Any, prefix: str, **options: Any) -> Any:
    return spark.read.format("toril").options(url=url, prefix=prefix, **options).load()


def write(frame: Any, url: Any, prefix: str, **options: Any) -> None:
    frame.write.format("toril").options(url=url, prefix=prefix, **options).mode("append").save()


def follow(spark: SparkSession, url: Any, prefix: str, checkpoint: Any, source: Any, target: Any) -> None:
    """Each event of one queue as a job of another."""
    events = spark.readStream.format("toril").options(url=url, prefix=prefix, queues=source).load()
    writer = events.select("event", "job_id").withColumnRenamed("job_id", "of").writeStream.format("toril")
    options = {"url": url, "prefix": prefix, "queue": target, "name": "echo"}
    query = writer.options(**options, checkpointLocation=str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def rows(spark: SparkSession, count: Any) -> Any:
    return spark.range(0, count, 1, 2).selectExpr("'send' as name", "named_struct('n', id) as data")


def states(frame: Any) -> Any:
    return {row.state: row["count"] for row in frame.groupBy("state").count().collect()}


def test_a_server_behind_tls_is_read_and_written(
    spark: SparkSession, redis7_tls: Any, prefix: str, tmp_path: Path
) -> None:
    url = redis7_tls.trusted_url
    write(rows(spark, 20), url, prefix, queue="safe")
    assert states(read(spark, url, prefix, table="jobs", queues="safe")) == {"waiting": 20}
    follow(spark, url, prefix, tmp_path, "safe", "echo")
    assert states(read(spark, url, prefix, table="jobs", queues="echo")) == {"waiting": 40}


def test_a_certificate_that_nobody_vouches_for_is_refused(
    spark: SparkSession, redis7_tls: Any, prefix: str
) -> None:
    with pytest.raises(Exception, match="certificate"):
        read(spark, redis7_tls.url, prefix, queues="safe").count()


def test_a_password_opens_the_server_and_is_shown_nowhere(
    spark: SparkSession, start_valkey: Any, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey()
    with server.client() as client:
        client.config_set("requirepass", SECRET)
    url = f"redis://:{SECRET}@127.0.0.1:{server.port}"
    write(rows(spark, 5), url, prefix, queue="closed")
    events = read(spark, url, prefix, queues="closed")
    assert events.count() == 10
    follow(spark, url, prefix, tmp_path / "checkpoint", "closed", "echo")
    pipeline = Pipeline(PipelineOptions(redis=url, prefix=prefix, lake=tmp_path / "lake"), spark=spark)
    pipeline.run_once()
    assert pipeline.query("select count(*) as n from silver.jobs").to_pylist() == [{"n": 15}]
    seen = [repr(events), explained(events), *plans_of_the_ui(spark), repr(pipeline.options), caplog.text]
    seen += [json.dumps(pipeline.status().as_dict(), default=str)]
    assert any("toril" in text for text in seen)
    assert not [text for text in seen if SECRET in text]
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 20
    assert not [one for one in files if SECRET.encode() in one.read_bytes()]


def explained(frame: Any) -> Any:
    return frame._jdf.queryExecution().toString()


def plans_of_the_ui(spark: SparkSession) -> Any:
    """What Spark's pages and event logs tell of every query of this session."""
    transport = spark._jsparkSession.sharedState().statusStore()
    found = transport.executionsList()
    return [found.apply(number).physicalPlanDescription() for number in range(found.size())]


def test_queues_on_a_cluster_are_written_read_and_acted_upon(
    spark: SparkSession, cluster: Any, cluster_url: Any, prefix: str
) -> None:
    names = ["a", "b", "c", "d"]
    frame = spark.range(0, 40, 1, 2).selectExpr(
        "'send' as name",
        "id as n",
        "array('a', 'b', 'c', 'd')[int(id % 4)] as queue",
        "concat('j-', id) as job_id",
    )
    for _ in range(2):
        write(frame, cluster_url, prefix, run="once")
    jobs = read(spark, cluster_url, prefix, table="jobs", queues="*")
    found = Counter(row.queue for row in jobs.collect())
    assert found == dict.fromkeys(names, 10)
    write(jobs.where("queue = 'a'").select("queue", "job_id"), cluster_url, prefix, op="remove")
    assert read(spark, cluster_url, prefix, table="jobs", queues="b,c,d").count() == 30
    assert read(spark, cluster_url, prefix, table="jobs", queues="a").count() == 0


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_envelopes_on_a_cluster_are_written_and_read(
    spark: SparkSession, cluster: Any, cluster_url: Any, prefix: str, kind: Any
) -> None:
    for queue in ("jobs.one", "jobs.two"):
        write(rows(spark, 6), cluster_url, prefix, queue=queue, kind=kind)
    found = read(spark, cluster_url, prefix, table="stream", kind=kind, queues="jobs.*").collect()
    assert Counter(row.queue for row in found) == {"jobs.one": 6, "jobs.two": 6}


def test_a_pipeline_follows_queues_on_a_cluster(
    spark: SparkSession, cluster: Any, cluster_url: Any, prefix: str, tmp_path: Path
) -> None:
    truth: Counter[str] = Counter()
    for name in ("one", "two", "three"):
        with Factory(cluster_url, name, prefix) as queue:
            queue.add(20)
            queue.work(fail=0.2, retry=0.2)
            truth += queue.outcomes
    lake = tmp_path / "lake"
    Pipeline(PipelineOptions(redis=cluster_url, prefix=prefix, lake=lake), spark=spark).run_once()
    found = Lake(lake).query("select outcome, worker, count(*)::int as n from silver.attempts group by all")
    outcomes: Counter[str] = Counter()
    for row in found.to_pylist():
        outcomes[row["outcome"]] += row["n"]
    assert outcomes == truth
    assert "factory-1" in found.column("worker").to_pylist(), "hashes were read on their nodes"


def test_the_folders_of_lake_and_checkpoint_are_private(
    make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    old = os.umask(0o022)
    try:
        make_pipeline(lake=tmp_path / "deep" / "lake", checkpoint=str(tmp_path / "checkpoint")).ingest()
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("deep/lake", "checkpoint")}
    assert modes == {"deep/lake": 0o700, "checkpoint": 0o700}
