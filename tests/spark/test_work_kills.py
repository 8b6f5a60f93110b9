"""A small version of `python -m tests.spark.work_kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.work_kills import Kill, Run, run, unexplained


@pytest.mark.timeout(600)
def test_jobs_shared_by_both_engines_a_worker_and_node_survive_kills(tmp_path: Path) -> None:
    lines: list[str] = []
    run(tmp_path, jobs=6000, kills=3, seed=5, seconds=300, say=lines.append)
    assert any("lost 0, one final transition for each of 6000 jobs" in line for line in lines)


def test_a_repeated_run_is_explained_by_a_kill_of_its_engine_in_between() -> None:
    kills = [Kill("loop", 10.0, 20.0), Kill("server", 40.0, 42.0)]
    repeated = {
        1: [Run(9.0, "loop"), Run(30.0, "node")],
        2: [Run(9.0, "rows"), Run(30.0, "rows")],  # another engine was killed
        3: [Run(41.0, "node"), Run(60.0, "plain")],  # it began while the server was down
        4: [Run(43.0, "node"), Run(60.0, "node")],
        5: [Run(1.0, "plain")],
    }
    assert [number for number, *_ in unexplained(repeated, kills)] == [2, 4]
