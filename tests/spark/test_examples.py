"""The examples run as they are printed."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.servers import Server
from tests.spark.makers import Factories, Pipelines
from tests.spark.places import JAVA

pytestmark = pytest.mark.timeout(600)  # the template starts a server of its own
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch, valkey_url: str, prefix: str, tmp_path: Path) -> None:
    monkeypatch.setenv("TORIL_REDIS_URL", valkey_url)
    monkeypatch.setenv("TORIL_PREFIX", prefix)
    monkeypatch.chdir(tmp_path)


def test_the_notebook_shows_figures_and_retries_what_failed(
    as_user: None, spark: SparkSession, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("notebook")
    queue.add(40)
    queue.work(fail=0.3)
    failed = queue.outcomes["failed"]
    runpy.run_path(str(EXAMPLES / "spark_notebook.py"), run_name="notebook")
    pages = sorted(page.name for page in tmp_path.glob("*.html"))
    assert pages == ["outcomes.html", "run_times.html"]
    assert all("plotly" in (tmp_path / page).read_text() for page in pages)
    jobs = spark.read.format("toril").options(url=queue.url, prefix=queue.prefix, table="jobs").load()
    states = {row.state: row["count"] for row in jobs.groupBy("state").count().collect()}
    assert states == {"completed": 40 - failed, "waiting": failed}


def test_failed_jobs_that_sql_selects_are_retried(
    as_user: None, spark: SparkSession, factory: Factories, valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = factory("orders")
    queue.add(30)
    queue.work(fail=0.5)
    runpy.run_path(str(EXAMPLES / "retry_failed.py"), run_name="__main__")
    with valkey.client() as client:
        assert client.zcard(queue.keys.failed) == 0
        assert client.llen(queue.keys.wait) == queue.outcomes["failed"] > 0


def test_the_template_of_a_declarative_pipeline_runs(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("declared")
    queue.add(20)
    queue.work(fail=0.2)
    pipeline = make_pipeline()
    pipeline.ingest()
    pipeline.refine()
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "declarative_pipeline", project)
    own = {"TORIL_LAKE": str(tmp_path / "lake"), "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": JAVA}
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", "spark-pipeline.yml"]
    done = subprocess.run(
        command, cwd=project, env={**os.environ, **own}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    counted = list((project / "spark-warehouse" / "outcomes").glob("*.parquet"))
    assert counted, done.stdout[-2000:]
