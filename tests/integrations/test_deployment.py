"""The files for deployment: checked by the linters of their tools, and rolling deploys with real workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integrations.web_server import REPOSITORY
from tests.servers import Server
from toril import Queue

FILES = REPOSITORY / "examples" / "deployment"
BIN = Path(sys.executable).parent


def check(*command: str, cwd: Path = FILES) -> str:
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_the_dockerfile_has_no_findings() -> None:
    assert check(str(BIN / "hadolint"), "Dockerfile") == ""


def test_the_compose_file_follows_its_specification() -> None:
    said = check(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml")
    assert "ok" in said


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # The program need not be there: `env` is, and the rest are its arguments.
    said = check("systemd-analyze", "verify", "--man=no", str(FILES / "toril-worker.service"), cwd=tmp_path)
    assert "toril-worker.service" not in said


@pytest.mark.parametrize("name", ["worker.yaml", "autoscaler.yaml"])
def test_kubernetes_accepts_the_manifests(name: str) -> None:
    said = check(str(BIN / "kubernetes-validate"), "--strict", "--quiet", str(FILES / "kubernetes" / name))
    assert "ERROR" not in said


def test_grace_periods_are_longer_than_the_shutdown_of_workers() -> None:
    worker = yaml.safe_load((FILES / "kubernetes" / "worker.yaml").read_text())["spec"]["template"]["spec"]
    words = worker["containers"][0]["args"]
    assert worker["terminationGracePeriodSeconds"] > int(words[words.index("--shutdown-timeout") + 1])
    compose = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]["worker"]
    assert compose["stop_grace_period"] == "40s"
    assert "TimeoutStopSec=40" in (FILES / "toril-worker.service").read_text()


APP = """
from toril import App
import asyncio
app = App(prefix={prefix!r})
@app.task(queue="orders"{version})
async def ship(order: int{more}) -> str:
    await asyncio.sleep(0.02)
    return {release!r}
"""


@pytest.mark.timeout(120)
async def test_old_and_new_workers_run_together_in_a_rolling_deploy(
    valkey: Server, prefix: str, tmp_path: Path
) -> None:
    new = ', version=2, upcasters={1: lambda data: {"order": data["order"], "fast": False}}'
    (tmp_path / "old.py").write_text(APP.format(prefix=prefix, version="", more="", release="old"))
    (tmp_path / "new.py").write_text(
        APP.format(prefix=prefix, version=new, more=", fast: bool = False", release="new")
    )
    first = start("old:app", valkey, tmp_path)
    async with Queue("orders", redis=valkey.url, prefix=prefix) as queue:
        jobs = [await queue.add("ship", {"order": n}) for n in range(200)]
        await jobs[0].wait_until_finished(40)
        second = start("new:app", valkey, tmp_path)
        late = await queue.add("ship", {"_v": 2, "order": 1, "fast": True})
        try:
            while not await queue.get_workers() or len(await queue.get_workers()) < 2:
                pass
            jobs += [await queue.add("ship", {"order": n}) for n in range(200)]
            first.terminate()
            assert first.wait(40) == 0
            results = [await job.wait_until_finished(40) for job in jobs]
            assert {"old", "new"} == set(results)
            assert await late.wait_until_finished(40) == "new"
            counts = await queue.get_job_counts()
            assert (counts.completed, counts.failed) == (401, 0)
        finally:
            for process in (first, second):
                process.terminate()
                process.wait(20)


def start(app: str, valkey: Server, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toril.cli", "worker", app, "--redis", valkey.url, "--concurrency", "2"]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)})
