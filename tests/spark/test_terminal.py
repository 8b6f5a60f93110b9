"""What a user of the pipeline sees in a terminal, and which Python Spark's workers run."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle as untyped
from pyspark.sql import SparkSession

from tests.servers import Server
from tests.spark.makers import Factories
from tests.spark.places import JAVA
from toril.commands.locks import report_worker
from toril.errors import SparkUnavailable
from toril.lake import Lake
from toril.spark.datasource import TorilDataSource
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.gold.worker_alerts import worker_alerts
from toril.spark.pipeline.supervisor.spark_errors import cause_of
from toril.spark.pipeline.unmatched_names import warn_about_unmatched_names
from toril.spark.python import as_portable, use_driver_python
from toril.spark.sinks.options import SinkOptions
from toril.spark.sinks.writers import BatchWriter
from toril.spark.transforms import DEFAULT_RULES, Rule

cloudpickle: Any = untyped
# As for somebody who did not activate the environment: its Python is not on the PATH.
PLAIN = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK", "VIRTUAL_ENV"))
    },
    "PATH": "/usr/bin:/bin",
    "JAVA_TOOL_OPTIONS": JAVA,  # written by Java at its start: one more line to hide
}
ONE_LINE = re.compile(r"\d+ events in [\d.]+ s \(ingest .* gold [\d.]+ s\)\n")


def run(
    url: str, prefix: str, lake: Path, *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    words = ["pipeline", "run", "--redis", url, "--prefix", prefix, "--lake", str(lake), "--queues", "seen"]
    command = [sys.executable, "-m", "toril.cli", *words, *more]
    return subprocess.run(command, env={**PLAIN, **environment}, capture_output=True, text=True, timeout=230)


def without_steps(text: str) -> str:
    """What is written besides the progress by step."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r"step \d of \d: ", line))


def test_a_run_prints_its_own_line_and_one_with_nothing_new_starts_no_spark(
    valkey: Server, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    factory("seen").add(20)
    server = f"server: {valkey.url}\n"
    first = run(valkey.url, prefix, tmp_path, "--engine", "spark")
    assert (first.returncode, without_steps(first.stderr)) == (0, server)
    assert ONE_LINE.fullmatch(first.stdout), first.stdout
    second = run(valkey.url, prefix, tmp_path, JAVA_HOME="/nowhere")  # Spark could not start
    assert (second.returncode, without_steps(second.stderr)) == (0, server)
    assert second.stdout.startswith("0 events in ")


def test_a_local_cluster_that_ends_writes_no_errors() -> None:
    """Executors whose driver goes without a word write pages of them."""
    program = f"""
from toril.spark.pipeline.session import build_session

settings = {{"spark.executor.memory": "512m", "spark.driver.extraJavaOptions": "{JAVA}",
            "spark.executor.extraJavaOptions": "{JAVA}", "spark.driver.host": "127.0.0.1"}}
session = build_session("local-cluster[1,1,512]", memory="512m", spark_log=True, **settings)
print(session.range(10).count())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=230)
    assert (ended.returncode, ended.stdout) == (0, "10\n")
    assert "WARN" in ended.stderr, "what Spark writes is shown when it is asked for"
    assert [line for line in ended.stderr.splitlines() if " ERROR " in line] == []


def test_a_java_that_does_not_start_says_why() -> None:
    program = (
        'from toril.spark.pipeline.session import build_session; build_session("local[1]", memory="1 melody")'
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert f"{SparkUnavailable.__name__}: Spark's Java process did not start" in ended.stderr
    assert "melody" in ended.stderr.splitlines()[-1]


def test_on_a_local_master_workers_run_the_python_of_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python3")
    use_driver_python(spark)
    assert context.pythonExec == "python3", "PYSPARK_PYTHON is set by the tests: the user's word counts"
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(context, "master", "spark://far:7077")
    use_driver_python(spark)
    assert context.pythonExec == "python3", "what is here says nothing of other machines"
    monkeypatch.setattr(context, "master", "local[2]")
    use_driver_python(spark)
    assert context.pythonExec == sys.executable
    assert spark.range(1).mapInArrow(lambda batches: batches, "id long").count() == 1


@pytest.mark.parametrize(
    ("what", "use"),
    [
        (lambda: as_portable(TorilDataSource), "found({}).schema()"),
        (lambda: BatchWriter(SinkOptions(queue="a", run="r")), "found"),
    ],
    ids=["source", "writer"],
)
def test_a_python_without_toril_says_that_it_is_the_one(
    what: Callable[[], Any], use: str, tmp_path: Path
) -> None:
    """A Python that has all packages of this environment except toril, which is found by a .pth file."""
    packed = tmp_path / "packed"
    packed.write_bytes(cloudpickle.dumps(what()))
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    load = f"found = pickle.load(open({str(packed)!r}, 'rb'))"
    program = f"import sys, pickle; sys.path.append({packages!r}); {load}; {use}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: the Python of Spark's workers, {sys.executable} on "), (
        ended.stderr
    )
    assert "lacks toril; install toril[spark] for it, or set PYSPARK_PYTHON" in last
    assert cause_of(f"[JOB_FAILED]\n  {last}\n at y").startswith(
        f"the Python of Spark's workers ({sys.executable} on "
    )


def test_what_travels_to_workers_arrives_as_it_was() -> None:
    writer = BatchWriter(SinkOptions(queue="a", run="r", key=("b",)))
    again = cloudpickle.loads(cloudpickle.dumps(writer))
    assert (type(again), again.options, again.run, again.save) == (
        BatchWriter,
        writer.options,
        "r",
        writer.save,
    )


def test_a_pattern_that_matches_nothing_is_said(
    valkey: Server, prefix: str, factory: Factories, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factory("there").add(1)
    options = PipelineOptions(
        redis=valkey.url,
        prefix=prefix,
        lake=tmp_path,
        queues="th*,nope*,gone",
        streams="jobs.*",
        stream_prefix=prefix,
    )
    with caplog.at_level(logging.WARNING, logger="toril.pipeline"):
        warn_about_unmatched_names(Pipeline(options)._context)
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(
        f"queues: no queue matches 'nope*', 'gone' under prefix {prefix!r} at redis://127.0.0.1:"
    )
    assert said[1].startswith("streams: no queue matches 'jobs.*' under prefix")
    assert len(said) == 2


def test_reports_of_workers_alone_become_figures_and_alerts_without_spark(
    valkey: Server, prefix: str, factory: Factories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    queue = factory("idle")
    options = PipelineOptions(redis=valkey.url, prefix=prefix, lake=tmp_path, queues="idle")
    for at, failed in ((0, 20), (1_000, 30)):
        report(queue, queue.transport.now_ms() + at, failed)
        for _ in range(2):  # the second finds the same report, as a run that is started again does
            pipeline = Pipeline(options)
            pipeline.collect_reports()
            pipeline.gold()
    assert pipeline.query("select count(*) as n from bronze.worker_reports").to_pylist() == [{"n": 2}]
    figures = pipeline.query(
        "select worker, heartbeats_failed, heartbeat_failure_rate from gold.workers"
    ).to_pylist()
    assert figures == [{"worker": "w-1", "heartbeats_failed": 30, "heartbeat_failure_rate": 0.3}]
    alerts = pipeline.query(
        "select rule, subject, value, threshold from gold.alerts order by value"
    ).to_pylist()
    same = {"rule": "heartbeat_failures", "subject": "w-1", "threshold": 0.05}
    assert alerts == [{**same, "value": 0.2}, {**same, "value": 0.3}]
    assert not pipeline._context.sessions.is_there


def report(queue: Any, now: int, failed: int) -> None:
    words = {"at": now, "jobs": 1, "heartbeats_ok": 100 - failed, "heartbeats_failed": failed}
    more = {"sweeps_done": 10, "sweeps_skipped": 0, "memory": 1000}
    text = json.dumps({**words, **more}).encode()
    queue.transport.run_many(report_worker(queue.keys, "w-1", text, now_ms=now, expire_ms=3_600_000))


@pytest.mark.parametrize(
    "sql",
    [
        "select w.queue, last_report_at as raised_at, 1 as value from workers w join queue_minute using (queue)",
        "select queue, timestamp_micros(1L) as raised_at, 1.0D as value from workers",
    ],
)
def test_a_rule_about_workers_that_only_spark_can_answer_is_left_to_it(tmp_path: Path, sql: str) -> None:
    rule = Rule(name="own", sql=sql, threshold=0, message="look")
    assert worker_alerts(Lake(tmp_path), [*DEFAULT_RULES, rule]) is None
    assert worker_alerts(Lake(tmp_path), DEFAULT_RULES) is not None
