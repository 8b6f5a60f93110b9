"""Which server Spark uses when nobody names one: the embedded server under a local master, none elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toril.cli._app import run
from toril.errors import InvalidOption
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.server_choice import Driver, choose, is_local, require_driver_jvm, url_for

REPOSITORY = Path(__file__).parents[2]
ELSEWHERE = "no server is named, and the Spark master"


def drive(master: str, folder: Path) -> Any:
    """What a driver of its own says that names no server."""
    (folder / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.spark.serverless_child", master]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(place.parent.name for place in folder.rglob(".toril")) == [folder.name]
    return json.loads(done.stdout.splitlines()[-1])


def test_under_a_local_master_library_and_spark_meet_on_the_embedded_server(tmp_path: Path) -> None:
    found = drive("local[2]", tmp_path)
    assert "toril.spark.register(spark)" in found.pop("discovered stream")
    assert found == {
        "discovered read": 1,  # what the library added
        "discovered write": None,
        "write": None,
        "read": 7,
        "stream": 7,
        "pipeline": 14,  # added and waiting, each
    }


def test_executors_of_their_own_are_refused_without_a_server(tmp_path: Path) -> None:
    found = drive("local-cluster[1,1,512]", tmp_path)
    assert "toril.spark.register(spark)" in found.pop("discovered stream")
    assert len(found) == 6
    for said in found.values():
        assert said.startswith(ELSEWHERE) and "TORIL_REDIS_URL" in said


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
        ("sc://host", False),
    ],
)
def test_a_master_that_is_not_local_needs_the_name_of_a_server(
    master: str, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_local(master) is local
    if local:
        assert url_for(master) == f"embedded:{tmp_path}/.toril"
    else:
        with pytest.raises(InvalidOption, match="is not local: its executors would not find an embedded one"):
            url_for(master)
    assert url_for(master, "redis://given") == "redis://given"
    assert url_for(master, "embedded:x") == f"embedded:{tmp_path}/x", "tasks may run in another directory"
    monkeypatch.setenv("TORIL_REDIS_URL", "redis://named")
    assert url_for(master) == "redis://named"


def test_what_the_driver_knows_counts_where_the_query_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose(None, Driver("local[2]", "/driver/.toril", None)).url == "embedded:/driver/.toril"
    assert choose(None, Driver("yarn", "/driver/.toril", "redis://named")).url == "redis://named"
    assert choose("redis://given", Driver("yarn", "/driver/.toril", "redis://named")).url == "redis://given"
    assert "secret" not in repr(Driver("yarn", "/driver/.toril", "redis://:secret@named"))


def test_a_task_of_another_jvm_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-driver")
    wanted = choose(None, None).jvm
    require_driver_jvm(wanted)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-executor")
    with pytest.raises(InvalidOption, match="this executor would not find the embedded one"):
        require_driver_jvm(wanted)
    require_driver_jvm(choose("redis://given", None).jvm)


def test_options_are_checked_without_choosing_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SourceOptions.parse({}).url is None
    assert SourceOptions.parse({"url": "embedded:x"}).url == f"embedded:{tmp_path}/x"


def test_a_pipeline_on_a_cluster_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", "run", "--master", "spark://127.0.0.1:1", "--lake", "lake"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ELSEWHERE in line and "TORIL_REDIS_URL" in line
