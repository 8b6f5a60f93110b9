"""The same code where Spark runs in many processes: a standalone master, Spark Connect, `spark-submit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import free_port
from tests.spark.makers import Factories
from tests.spark.places import connect_server, standalone, submit
from tests.spark.test_killed_drivers import check_tables
from toril.errors import SparkUnavailable
from toril.lake import Lake
from toril.spark.pipeline.session import build_session

pytestmark = pytest.mark.timeout(600)  # several JVMs start, on shared cores
# Any master will do; executors of their own are what the other tests are about. TORIL_TEST_MASTER names another.
MASTER = os.environ.get("TORIL_TEST_MASTER", "local[2]")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_spark_submit_runs_the_pipeline_on_a_standalone_master_with_two_workers(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("standalone")
    queue.add(300)
    queue.work(fail=0.2)
    words = ["--redis", valkey_url, "--prefix", prefix, "--lake", str(tmp_path / "lake")]
    with standalone(tmp_path) as master:
        done = submit(master, str(EXAMPLES / "pipeline_job.py"), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"events={queue.entries_added}" in done.stdout
    check_tables(tmp_path / "lake", queue)


def test_a_client_of_a_connect_server_reads_writes_streams_works_and_runs_the_pipeline(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("emails")
    queue.add(60)
    queue.work(fail=0.3)
    failed, before = queue.outcomes["failed"], queue.entries_added
    words = [sys.executable, "-m", "tests.spark.remote_child"]
    with connect_server(tmp_path, MASTER) as server:
        command = [*words, server, valkey_url, prefix, str(tmp_path / "lake")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:] + (tmp_path / "connect.log").read_text()[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["counts"] == {"emails": 60, "written": 50}
    assert seen["results"] == [[2 * n for n in range(20)]] * 2, "both engines of SparkWorker"
    lake = Lake(tmp_path / "lake")
    states = lake.query("select queue, state, count(*)::int as n from silver.jobs group by all").to_pylist()
    assert {(row["queue"], row["state"]): row["n"] for row in states} == {
        ("emails", "completed"): 60 - failed,
        ("emails", "waiting"): failed,
        ("written", "waiting"): 50,
        ("echo", "waiting"): queue.entries_added,
    }
    assert queue.entries_added > before, "the failed jobs were retried"
    (figures,) = lake.query("select sum(failed)::int as failed from gold.queue_minute").to_pylist()
    assert figures == {"failed": failed}


def test_a_connect_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(SparkUnavailable, match=r"start-connect-server\.sh, or correct the address"):
        build_session(f"sc://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("""openjdk version "11.0.2" 2019-01-15""", "is Java 11; install a newer one"),
        ("""java version "1.8.0_291" """, "is Java 8; install a newer one"),
    ],
)
def test_a_java_that_is_too_old_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, message: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=message):
        build_session("local[1]")


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="where there is no bin/java; correct it or unset it"):
        build_session("local[1]")
