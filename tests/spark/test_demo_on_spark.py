"""`toril demo` with Spark: tables, a report, and jobs on executors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_the_demo_makes_tables_on_spark_and_scores_jobs_on_executors(tmp_path: Path) -> None:
    words = ["demo", "--jobs", "40", "--pace", "0", "--scored", "300", "--json"]
    run = subprocess.run(
        [sys.executable, "-m", "toril.cli", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["as_planned"] is True and report["left_out"] == []
    assert (report["scored"]["jobs"], report["scored"]["completed"]) == (300, 300)
    tables = report["tables"]
    assert tables["engine"] == "spark" and tables["events"] > 200
    assert {row["queue"]: row["completed"] for row in tables["figures"]}["emails"] == 24
    assert any("prompt is empty" in row["pattern"] for row in tables["errors"])
    assert any(row["rule"] == "stalled_jobs" for row in tables["alerts"])
    left = {path.name for path in tmp_path.iterdir()} - {".cache"}  # coverage writes there
    assert left == {"toril-demo-report.html"}
    assert "video-generation" in (tmp_path / "toril-demo-report.html").read_text()
