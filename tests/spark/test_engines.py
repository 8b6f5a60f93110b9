"""Both engines of a pipeline: the same rows, and which one a run uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories
from tests.spark.records import whole_tables
from toril import sync
from toril.errors import InvalidOption
from toril.lake import TABLES
from toril.lake.delta_table import LakeTable
from toril.protocol.error_pattern import error_pattern, fingerprint
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.transforms import Rule, with_fingerprint

MADE = [name for name in TABLES if name.startswith(("silver/", "gold/"))]


class Both:
    """Two pipelines over the same queues, one for each engine, with a lake each."""

    def __init__(self, url: str, prefix: str, folder: Path, spark: SparkSession, **settings: Any) -> None:
        words: dict[str, Any] = {"redis": url, "prefix": prefix, **settings}
        driver = PipelineOptions(lake=folder / "driver", engine="driver", **words)
        self.driver = Pipeline(driver, spark=spark)
        self.spark = Pipeline(PipelineOptions(lake=folder / "spark", engine="spark", **words), spark=spark)

    def run(self) -> None:
        assert self.driver.run_once().events == self.spark.run_once().events

    def check(self) -> dict[str, list[tuple[Any, ...]]]:
        found = whole_tables(self.driver, MADE)
        expected = whole_tables(self.spark, MADE)
        for name in MADE:
            assert found[name] == expected[name], name
        return found


@pytest.fixture
def both(valkey: Server, prefix: str, tmp_path: Path, spark: SparkSession) -> Both:
    return Both(valkey.url, prefix, tmp_path, spark)


def use_ids_again(queue: Factory, server: Server, both: Both) -> None:
    """Jobs that stall, that fail and are tried again, and ids that are used twice."""
    queue.let_stall(queue.take(5))
    queue.work(fail=0.2, retry=0.3)
    both.run()
    with sync.Queue(queue.queue, redis=server.url, prefix=queue.prefix) as jobs:
        for job in jobs.get_jobs(["completed"])[:10]:
            job.remove()
            jobs.add("again", {}, job_id=f"x{job.id}"[:30])
    queue.work(retry=0.5)


def test_both_engines_give_the_same_rows(both: Both, factory: Factories, valkey: Server) -> None:
    first, trimmed = factory("first"), factory("trimmed", events_max_len=100)
    first.add(60, backoff={"type": "fixed", "delay": 0})
    trimmed.add(80)
    trimmed.work(fail=0.2, retry=0.2)
    first.report("w-1", heartbeats_failed=50)
    use_ids_again(first, valkey, both)
    both.run()
    with sync.Queue("trimmed", redis=valkey.url, prefix=trimmed.prefix) as queue:
        queue.obliterate(force=True)
    trimmed.add(20)
    trimmed.work(retry=0.3)
    both.run()
    rows = both.check()
    assert all(rows[name] for name in MADE), "a table without rows compares nothing"


def test_a_replay_in_the_driver_gives_what_spark_has_computed(
    both: Both, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("again", events_max_len=150)
    queue.add(80)
    queue.work(fail=0.2, retry=0.3)
    both.spark.run_once()
    before = whole_tables(both.spark, MADE)
    queue.forget()
    pipeline = Pipeline(PipelineOptions(redis=both.spark.redis, lake=tmp_path / "spark", engine="driver"))
    pipeline.replay()
    assert whole_tables(pipeline, MADE) == before


@pytest.mark.parametrize("engine", ["java", ""])
def test_an_engine_that_is_not_there_is_refused(engine: str) -> None:
    with pytest.raises(InvalidOption, match="auto, driver, spark"):
        PipelineOptions(engine=engine)


def test_a_run_with_few_events_starts_no_java(factory: Factories, valkey: Server, tmp_path: Path) -> None:
    queue = factory("few")
    queue.add(20)
    queue.work(fail=0.3)
    program = [sys.executable, "-m", "toril.cli", "pipeline", "run", "--lake", str(tmp_path / "lake")]
    words = ["--redis", valkey.url, "--prefix", queue.prefix, "--streams", ""]
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=True, env={"JAVA_HOME": str(tmp_path)}
    )
    assert f"{queue.entries_added} events" in done.stdout


def test_a_run_with_many_events_is_computed_by_spark(
    factory: Factories, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("many")
    queue.add(20)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    options = PipelineOptions(redis=valkey.url, prefix=queue.prefix, lake=tmp_path, driver_rows=30)
    pipeline = Pipeline(options)
    with pytest.raises(Exception, match="JAVA_HOME"):
        pipeline.run_once()
    queue.add(1)


def test_rules_of_a_user_are_asked_in_spark(
    factory: Factories, valkey: Server, prefix: str, tmp_path: Path, spark: SparkSession
) -> None:
    queue = factory("rules")
    queue.add(20)
    queue.work()
    sql = "select queue, minute as raised_at, double(attempts) as value from queue_minute"  # DuckDB has no double()
    rule = Rule(name="many", sql=sql, threshold=1.0, message="many attempts")
    both = Both(valkey.url, prefix, tmp_path, spark, rules=(rule,))
    both.run()
    assert both.check()["gold/alerts"]


def test_alerts_that_a_killed_run_did_not_commit_are_found_by_the_next_one(
    factory: Factories, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("alerted")
    queue.add(40)
    queue.work(retry=0.9)
    options = PipelineOptions(redis=valkey.url, prefix=queue.prefix, lake=tmp_path, engine="driver")
    real = LakeTable.commit

    def end_before_alerts(self: LakeTable, *words: Any, **more: Any) -> None:
        if self.spec.name == "gold/alerts":
            raise KeyboardInterrupt
        real(self, *words, **more)

    with monkeypatch.context() as broken:
        broken.setattr(LakeTable, "commit", end_before_alerts)
        with pytest.raises(KeyboardInterrupt):
            Pipeline(options).run_once()
    pipeline = Pipeline(options)
    assert pipeline.lake.read("gold/alerts").num_rows == 0
    pipeline.run_once()
    assert set(pipeline.lake.read("gold/alerts")["rule"].to_pylist()) == {"retries"}
    version = pipeline.lake.table("gold/alerts").version
    pipeline.run_once()
    assert pipeline.lake.table("gold/alerts").version == version, "a run with nothing new computes no alerts"


def test_both_engines_find_the_same_pattern_in_a_message(spark: SparkSession) -> None:
    texts = [
        "Error: connect ECONNREFUSED 10.0.0.1:6379",
        "package.TypeError [ERR_X]: Error:  Exception: done",
        "KeyError: 'name'",
        "job 7b1c2c3e-1111-2222-3333-444455556666 at https://a.b/c?d=1 took 1.5 s",
        "0xDEADBEEF deadbeefdead12 `x` \"y\" 'z'\nsecond line",
        "  spaces\t\tand  tabs  ",
        "Überweisung 12 für Straße 3 nº５ abgelehnt",
        "x" * 2000,
        "",
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "error string")
    found = {row.error: (row.pattern, row.fingerprint) for row in with_fingerprint(frame).collect()}
    assert found == {text: (error_pattern(text), fingerprint(error_pattern(text))) for text in texts}
