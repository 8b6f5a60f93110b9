"""Writes results as a page of tables (Markdown), for the documentation.

Guarantee: pure text out of figures; every number on the page stands in the file it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import report, targets
from benchmarks.contenders import CONTENDERS
from benchmarks.figures import Summary, less_is_better, ratio
from benchmarks.machine_load import BUSY
from benchmarks.targets import Verdict
from benchmarks.workloads import Work


def page(content: Mapping[str, Any], plan: Sequence[Work]) -> str:
    """The promises, then every work of the plan that was measured."""
    results = report.read_results(content)
    parts = [
        "# Figures",
        _opening(content),
        "## Promises",
        _promises(targets.decide_outcome(results)),
        "## Works",
    ]
    for work in plan:
        if results.get(work.name):
            parts += [
                f"### {work.title[:1].upper()}{work.title[1:]}",
                _circumstances(content, work),
                _table(work, results[work.name]),
            ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(content: Mapping[str, Any]) -> str:
    where = content["environment"]
    lines = [
        "Made by `python -m benchmarks --draw` out of one file of figures; how they are measured is told in",
        "[Performance](../performance.md). Medians, with the lowest and the highest run where there are several.",
        f"{where['server']}, Python {where['python']}, {where['machine']}.",
    ]
    return "\n".join([*lines, *(f"\n- Did not take part: {line}" for line in _reasons(content["failures"]))])


def _reasons(failures: Iterable[str]) -> list[str]:
    return [line.splitlines()[0][:160] for line in failures if line.strip()]


def _circumstances(content: Mapping[str, Any], work: Work) -> str:
    share = content.get("conditions", {}).get(work.name, {}).get("others", 0.0)
    return f"*Others used {share:.0%} of the processors just before.*" if share > BUSY else ""


def _promises(ack_errors: Sequence[Verdict]) -> str:
    rows = [
        [
            one.target.title,
            one.target.bound,
            "–" if one.figure is None else f"{one.figure:.2f}",
            CONTENDERS[one.rival].label if one.rival else "",
            "kept" if one.kept else "**missed**",
        ]
        for one in ack_errors
    ]
    return _markdown(["work", "promise", "measured", "beside", ""], rows)


def _table(work: Work, results: Mapping[str, Mapping[str, Summary]]) -> str:
    metrics = list(dict.fromkeys(name for summaries in results.values() for name in summaries))
    lead, ours = metrics[0], results.get(work.contenders[0], {})
    headings = ["", *(_heading(metric) for metric in metrics)]
    compared = len(results) > 1 and lead in ours
    if compared:
        headings.append("toril ÷ this")
    order = sorted(results, key=lambda name: _rank(lead, results[name]), reverse=not less_is_better(lead))
    rows = []
    for name in order:
        row = [_label(name), *(_figure(metric, results[name].get(metric)) for metric in metrics)]
        rows.append([*row, _times(ours[lead], results[name].get(lead))] if compared else row)
    return _markdown(headings, rows)


def _rank(lead: str, summaries: Mapping[str, Summary]) -> float:
    return summaries[lead].median if lead in summaries else 0.0


def _label(name: str) -> str:
    label = CONTENDERS[name].label
    return f"**{label}**" if name.startswith("toril") else label


def _heading(metric: str) -> str:
    return report.COLUMNS.get(metric, (metric.replace("_", " "), ""))[0]


def _figure(metric: str, summary: Summary | None) -> str:
    if summary is None:
        return "–"
    shape = report.COLUMNS.get(metric, ("", report.FIGURE))[1]
    told = shape.format(summary.median)
    if metric != "rate" or summary.runs == 1:
        return told
    return f"{told} ({shape.format(summary.low)} – {shape.format(summary.high)})"


def _times(ours: Summary, theirs: Summary | None) -> str:
    return "–" if theirs is None else f"{ratio(ours.median, theirs.median):.2f}"


def _markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
