"""Plots are well-formed pictures of the figures they were given."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.figures import Summary
from benchmarks.plots import Bar, bars, draw, lines
from benchmarks.record import Record
from benchmarks.report import as_json, merge, read_results

SVG = "{http://www.w3.org/2000/svg}"


def test_the_longest_bar_is_first_and_its_figure_is_written_beside_it() -> None:
    picture = ET.fromstring(
        bars("race", "jobs/s", [Bar("slow & old", 10, 9, 11, False), Bar("toril", 20, 19, 21, True)])
    )
    widths = [float(rect.get("width", "nan")) for rect in picture.iter(f"{SVG}rect")]
    assert widths == sorted(widths, reverse=True)
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert words.index("toril") < words.index("slow & old")


def test_lines_go_from_the_smallest_size_to_the_largest() -> None:
    picture = ET.fromstring(lines("growth", "jobs", "jobs/s", {"toril": [(1e3, 5.0), (1e6, 4.9)]}))
    (line,) = picture.iter(f"{SVG}polyline")
    first, last = (float(point.split(",")[0]) for point in line.get("points", "").split())
    assert first < last


def test_only_what_was_measured_is_drawn(tmp_path: Path) -> None:
    results = {"bulk": {name: {"rate": Summary(5.0, 4.0, 6.0, 3)} for name in ("toril", "node-5")}}
    assert [path.name for path in draw(results, tmp_path)] == ["bulk.svg"]


def test_each_mode_of_persistence_has_its_own_plots(tmp_path: Path) -> None:
    one = {name: {"rate": Summary(5.0, 4.0, 6.0, 3)} for name in ("toril", "node-5")}
    results = {f"process-{size}{mode}": one for size in (1, 10) for mode in ("", "-everysec")}
    names = {path.name for path in draw(results, tmp_path)}
    assert names == {"process-1.svg", "by-process.svg", "process-1-everysec.svg", "by-process-everysec.svg"}
    assert "append-only file, everysec" in (tmp_path / "process-1-everysec.svg").read_text(encoding="utf-8")


def test_figures_survive_being_written_and_read() -> None:
    record = Record(runs={"bulk": {"toril": [{"rate": 4.0}, {"rate": 5.0}, {"rate": 6.0}]}})
    assert read_results(as_json({}, record)) == {"bulk": {"toril": {"rate": Summary(5.0, 4.0, 6.0, 3)}}}


def test_a_later_run_replaces_whole_works_and_leaves_the_others() -> None:
    earlier = Record(
        runs={
            "bulk": {"toril": [{"rate": 5.0}], "node-5": [{"rate": 5.0}]},
            "list": {"toril": [{"rate": 5.0}]},
        },
        failures=["bulk, rq: it fell over", "list, rq: it fell over"],
        conditions={"bulk": {"others": 0.5}, "list": {"others": 0.5}},
    )
    later = Record(runs={"bulk": {"toril": [{"rate": 7.0}]}}, conditions={"bulk": {"others": 0.0}})
    both = merge(as_json({}, earlier), as_json({}, later))
    rates = {
        workload: {name: one["rate"].median for name, one in found.items()}
        for workload, found in read_results(both).items()
    }
    assert rates == {"bulk": {"toril": 7.0}, "list": {"toril": 5.0}}
    assert both["failures"] == ["list, rq: it fell over"]
    assert both["conditions"] == {"bulk": {"others": 0.0}, "list": {"others": 0.5}}
