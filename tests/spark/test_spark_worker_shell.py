"""`toril worker --spark`, and the program of docs/spark-work.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark.up_kills import until
from toril import sync

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark-work.md"
APP = """
import pyarrow as pa
import pyarrow.compute as pc


def score(batch: pa.Table):
    return pc.multiply(pc.struct_field(batch["data"], "x"), 2)


from toril import App

shop = App()


@shop.task(queue="orders")
async def total(prices: list[int]) -> int:
    return sum(prices)


async def slow(job):
    import asyncio
    await asyncio.sleep(0.3)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "toril.cli", "worker", *arguments, "--spark", "local[1,4]", "--json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, env=dict(os.environ))


def test_the_shell_runs_a_function_of_batches_until_no_job_is_left(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    where = ["--redis", valkey_url, "--prefix", prefix, "--queue", "scores"]
    with sync.Queue("scores", redis=valkey_url, prefix=prefix) as queue:
        jobs = queue.add_bulk([("score", {"x": n}) for n in range(30)])
        worker = start(tmp_path, "app:score", *where, "--until-idle", "--data-schema", "x bigint")
        output, log = worker.communicate(timeout=120)
        assert worker.returncode == 0, log
        assert json.loads(output.splitlines()[-1])["completed"] == 30
        assert jobs[4].wait_until_finished(timeout=5) == 8


def test_the_shell_runs_the_tasks_of_an_app_on_executors(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    with sync.Queue("orders", redis=valkey_url, prefix=prefix) as queue:
        jobs = queue.add_bulk([("total", {"prices": [n, 1]}) for n in range(20)])
        where = ["--redis", valkey_url, "--prefix", prefix]
        worker = start(tmp_path, "app:shop", *where, "--until-idle", "--engine", "loop", "--slice", "5")
        output, log = worker.communicate(timeout=120)
        assert worker.returncode == 0, log
        assert json.loads(output.splitlines()[-1])["completed"] == 20
        assert jobs[4].wait_until_finished(timeout=5) == 5


def test_sigterm_lets_running_jobs_finish(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    where = ["--redis", valkey_url, "--prefix", prefix, "--queue", "scores"]
    with sync.Queue("scores", redis=valkey_url, prefix=prefix) as queue:
        queue.add_bulk([("slow", {}) for _ in range(500)])
        worker = start(tmp_path, "app:slow", *where, "--concurrency", "5")
        until(lambda: queue.get_job_counts().completed > 0, 0.1, 90)
        worker.send_signal(signal.SIGTERM)
        output, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
        counts = queue.get_job_counts()
        assert counts.active == 0
        assert counts.completed == json.loads(output.splitlines()[-1])["completed"]
        assert counts.completed + counts.waiting == 500


def test_options_of_spark_need_a_master(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "toril.cli", "worker", "app:score", "-q", "scores", "--tasks", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert run.returncode == 2
    assert "--tasks" in run.stderr and "is for --spark" in run.stderr


def test_the_program_of_the_document_prints_what_it_says(tmp_path: Path) -> None:
    shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None
    command = [sys.executable, "-c", shown[1]]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.returncode) == (shown[2], 0), run.stderr
