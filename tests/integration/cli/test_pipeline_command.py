"""`toril pipeline`: the tables from the shell, with Spark where they are written and without where they are read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Start, Toril


def test_tables_that_are_not_there_yet_are_empty(toril: Toril, here: list[str], tmp_path: Path) -> None:
    lake = ["--lake", str(tmp_path / "lake")]
    page = tmp_path / "report.html"
    assert toril("pipeline", "report", "--output", str(page), *lake).out.startswith("no rows\n")
    assert toril("pipeline", "query", "select 1 as one", *lake, "--json").data == [{"one": 1}]
    asked = toril("pipeline", "query", "select * from gold.queue_hour", *lake)
    assert (asked.code, asked.out) == (0, "no rows\n")
    assert f"there are no tables in {tmp_path / 'lake'}; run" in asked.err
    status = toril("pipeline", "status", *lake, "--json", *here).data
    assert status["tables"] == []


def test_a_query_that_is_none_is_one_line(toril: Toril, tmp_path: Path) -> None:
    result = toril("pipeline", "query", "selekt", "--lake", str(tmp_path))
    assert result.code == 1 and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--snapshots", "some", "snapshots: cannot be 'some'; one of all, failed, none"),
        ("--fill", "never", "fill: cannot be 'never'; one of all, failed, none"),
        (
            "--starting",
            "tomorrow",
            "starting: 'tomorrow' is not a time; write 2026-01-31T12:00:00Z, or milliseconds",
        ),
    ],
)
def test_a_word_that_means_nothing_is_refused_before_spark_starts(
    toril: Toril, here: list[str], tmp_path: Path, option: str, value: str, said: str
) -> None:
    result = toril("pipeline", "run", "--lake", str(tmp_path), option, value, *here)
    assert (result.code, result.err) == (2, f"toril: {said}\n")


def test_a_run_whose_queues_match_nothing_says_so(
    start: Start, here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # there is nothing to do for Spark
    process = start("pipeline", "run", "--queues", "nope*", "--lake", str(tmp_path / "lake"), *here)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out.partition(" in ")[0]) == (0, "0 events")
    assert "queues: no queue matches 'nope*' under prefix" in err.splitlines()[1]
    assert err.splitlines()[-1].endswith("check name, prefix and server")


def test_filling_from_hashes_that_are_not_kept_is_refused(
    toril: Toril, here: list[str], tmp_path: Path
) -> None:
    words = ["--lake", str(tmp_path), "--snapshots", "failed", "--fill", "all"]
    said = "fill: 'all' needs hashes that are not kept with snapshots 'failed'; say snapshots 'all', or fill 'failed'"
    for command in ("run", "up"):
        result = toril("pipeline", command, *words, *here)
        assert (result.code, result.err) == (2, f"toril: {said}\n")


@pytest.mark.timeout(240)
def test_a_run_brings_the_events_into_the_tables(
    start: Start, toril: Toril, here: list[str], tmp_path: Path
) -> None:
    toril("add", "emails", "work", "--count", "5", *here)
    for name in ("stream:kept", "stream:left"):
        toril("add", name, "work", "--count", "2", *here)
    worker = start("worker", "handlers:handle", "-q", "emails", "--until-idle", "--log-level", "error", *here)
    worker.communicate(timeout=60)
    lake = ["--lake", str(tmp_path / "lake")]
    # In a process of its own: Spark's session would outlive the test.
    prefix = here[here.index("--prefix") + 1]
    chosen = ["--queues", "emails", "--streams", "kept", "--stream-prefix", prefix, "--snapshots", "failed"]
    process = start("pipeline", "run", "--json", *chosen, *lake, *here)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err[-2000:]
    assert json.loads(out)["events"] > 0
    (row,) = toril("pipeline", "report", "--json", *lake).data
    assert (row["queue"], row["completed"]) == ("emails", 5)
    tables = {one["table"] for one in toril("pipeline", "status", "--json", *lake, *here).data["tables"]}
    assert {"bronze/events", "silver/attempts", "gold/queue_hour"} <= tables
    assert "gold/queue_hour" in toril("pipeline", "status", *lake, *here).out
    entries = "select queue, count(*) as n from bronze.stream_entries group by all"
    assert toril("pipeline", "query", entries, "--json", *lake).data == [{"queue": "kept", "n": 2}]
    assert toril("pipeline", "query", "select * from bronze.jobs", "--json", *lake).data == []
    _say_that_bronze_was_rolled_back(toril, chosen, here, tmp_path)
    assert {one["table"] for one in toril("pipeline", "maintain", "--json", *lake).data} == tables


def _say_that_bronze_was_rolled_back(toril: Toril, chosen: list[str], here: list[str], folder: Path) -> None:
    """On a copy of the lake whose last commit of events is gone; said before Spark starts."""
    copy = shutil.copytree(folder / "lake", folder / "copy")
    max((copy / "bronze/events/_delta_log").glob("*.json")).unlink()
    said = re.compile(rf"bronze/events was rolled back.*`toril pipeline replay --lake {copy}`")
    for command in ("run", "up"):
        result = toril("pipeline", command, *chosen, "--lake", str(copy), *here)
        assert (result.code, bool(said.search(result.err))) == (1, True), result.err
    assert said.search(toril("pipeline", "status", "--lake", str(copy), *here).err)
