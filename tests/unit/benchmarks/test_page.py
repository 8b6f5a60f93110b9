"""The page of tables that is made out of figures."""

from __future__ import annotations

from typing import Any

from benchmarks.page import page
from benchmarks.workloads import full_plan


def summary(median: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    runs = 1 if low is None else 3
    return {"median": median, "low": low or median, "high": high or median, "runs": runs}


def content(**works: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "environment": {"taken": "then", "server": "Valkey 9", "python": "3.11", "machine": "Linux, 2 cores"},
        "conditions": {"process-1": {"others": 0.6}, "bulk": {"others": 0.01}},
        "works": {
            workload.replace("_", "-"): {
                name.replace("_", "-"): {"runs": [], "summary": metrics}
                for name, metrics in contenders.items()
            }
            for workload, contenders in works.items()
        },
        "failures": ["bulk, rq 2: it ended\nwith a long story"],
    }


def test_each_work_has_its_table_with_the_best_first_and_our_ratio_to_each() -> None:
    written = page(
        content(bulk={"node_5": {"rate": summary(100)}, "toril": {"rate": summary(250, 200, 300)}}),
        full_plan(),
    )
    rows = [
        line for line in written.splitlines() if line.startswith("| **toril**") or "Node bullmq 5" in line
    ]
    assert rows[-2:] == ["| **toril** | 250 (200 – 300) | 1.00 |", "| Node bullmq 5.62.0 | 100 | 2.50 |"]


def test_a_figure_that_was_taken_beside_other_work_says_so() -> None:
    one = {"toril": {"rate": summary(5)}}
    written = page(content(process_1=one, bulk=one), full_plan())
    assert written.count("*Other processes used 60% of the CPUs just before.*") == 1


def test_who_did_not_take_part_and_which_target_was_missed_is_printed() -> None:
    written = page(content(bulk={"toril": {"rate": summary(1)}, "node_5": {"rate": summary(1)}}), full_plan())
    assert "- Not measured: bulk, rq 2: it ended\n" in written
    assert "| bulk adds, beside Node 5.62.0 | ≥ 1.5 × | 1.00 | Node bullmq 5.62.0 | **missed** |" in written
