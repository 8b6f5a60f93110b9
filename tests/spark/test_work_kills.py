"""A small version of `python -m tests.spark.work_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.work_kills import run


@pytest.mark.timeout(600)
def test_jobs_shared_by_both_engines_a_worker_and_node_survive_kills(tmp_path: Path) -> None:
    lines: list[str] = []
    run(tmp_path, jobs=6000, kills=3, seed=5, seconds=300, say=lines.append)
    assert any("lost 0, one final transition for each of 6000 jobs" in line for line in lines)
    assert "0 of them without a kill of their engine" in lines[-1]
