"""`SparkWorker` with servers that need more than an address, and with Spark in processes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.places import submit
from toril import sync
from toril.spark import SparkWorker

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = ("cluster", "sentinel", "tls")


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """The address of a Redis Cluster, of a server behind Sentinel, or of one that asks for TLS."""
    if request.param == "tls":
        return str(request.getfixturevalue("redis7_tls").trusted_url)
    return str(request.getfixturevalue(f"{request.param}_url"))


def score(batch: pa.Table) -> list[float]:
    return [2.0 * row["x"] for row in batch["data"].to_pylist()]


def score_rows(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("queue", "job_id", "token", "position", "data.x * 2 as result")


@pytest.mark.parametrize(("takes", "handler"), [("arrow", score), ("dataframe", score_rows)])
def test_a_worker_on_spark_processes_the_jobs_of_any_server(
    spark: SparkSession, url: str, prefix: str, takes: str, handler: Any
) -> None:
    with sync.Queue("scores", redis=url, prefix=prefix) as queue:
        jobs = queue.add_bulk([("score", {"x": n}) for n in range(20)])
        options: dict[str, Any] = {"takes": takes, "data_schema": "x double", "tasks": 2}
        done = SparkWorker("scores", handler, spark=spark, redis=url, prefix=prefix, **options).run_once()
        assert (done.completed, done.failed, done.restarts) == (20, 0, 0)
        assert [one.wait_until_finished(timeout=5) for one in jobs] == [2.0 * n for n in range(20)]
        counts = queue.get_job_counts()
        assert (counts.active, counts.waiting) == (0, 0)


@pytest.mark.timeout(600)  # several JVMs start, on shared cores
def test_spark_submit_runs_a_worker_on_executors_of_their_own(valkey_url: str, prefix: str) -> None:
    with sync.Queue("scores", redis=valkey_url, prefix=prefix) as queue:
        jobs = queue.add_bulk([("score", {"x": n}) for n in range(200)])
        words = ["--redis", valkey_url, "--prefix", prefix, "--queue", "scores", "--until-idle"]
        done = submit("local-cluster[1,1,768]", str(EXAMPLES / "score_job.py"), *words)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "completed=200, failed=0" in done.stdout
        assert jobs[21].wait_until_finished(timeout=5) == 42.0
