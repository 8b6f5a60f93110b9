"""Reports a run: tables on the terminal, JSON in a file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS
from benchmarks.figures import Summary, less_is_better, ratio
from benchmarks.machine_load import BUSY
from benchmarks.record import Record
from benchmarks.targets import Verdict

# Heading and format of each metric.
COLUMNS: Mapping[str, tuple[str, str]] = {
    "rate": ("jobs/s", "{:,.0f}"),
    "client_us": ("client µs", "{:.1f}"),
    "server_us": ("server µs", "{:.1f}"),
    "rss_mb": ("worker MB", "{:.0f}"),
    "memory_mb": ("MB per 10k done", "{:.2f}"),
    "file_bytes": ("bytes of file", "{:,.0f}"),
    "shallow_rate": ("jobs/s with 1,000 waiting", "{:,.0f}"),
    "beside_shallow": ("ratio", "{:.2f}"),
}
FIGURE = "{:.2f}"


def describe_machine(server_version: str) -> dict[str, Any]:
    """Returns where and when the figures were taken."""
    return {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": f"Valkey {server_version}, loopback",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def show_workload(
    console: Console, title: str, results: Mapping[str, Mapping[str, Summary]], ours: str
) -> None:
    """Prints one table: the medians of each contender, and the ratio of ours to theirs."""
    metrics = list(dict.fromkeys(name for summaries in results.values() for name in summaries))
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for metric in metrics:
        table.add_column(COLUMNS.get(metric, (metric.replace("_", " "), ""))[0], justify="right")
    if len(results) > 1 and metrics:
        table.add_column("spread", justify="right")
        table.add_column(f"{ours} ÷ this", justify="right")
    for name, summaries in results.items():
        table.add_row(*_row(name, summaries, metrics, results.get(ours, {}), alone=len(results) == 1))
    console.print(table)


def _row(
    name: str,
    summaries: Mapping[str, Summary],
    metrics: Sequence[str],
    ours: Mapping[str, Summary],
    *,
    alone: bool,
) -> list[str]:
    cells = [CONTENDERS[name].label]
    for metric in metrics:
        shape = COLUMNS.get(metric, ("", FIGURE))[1]
        cells.append(shape.format(summaries[metric].median) if metric in summaries else "–")
    if alone or not metrics:
        return cells
    lead = metrics[0]
    if lead not in summaries or lead not in ours:
        return [*cells, "–", "–"]
    times = ratio(ours[lead].median, summaries[lead].median)
    ahead = times < 1 if less_is_better(lead) else times > 1
    mark = "green" if ahead else "default"
    return [*cells, f"± {summaries[lead].spread:.0%}", f"[{mark}]{times:.2f} ×[/{mark}]"]


def show_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Prints which targets the run met."""
    table = Table(title="targets", title_justify="left", title_style="bold")
    for heading, side in (
        ("", "left"),
        ("wanted", "right"),
        ("measured", "right"),
        ("compared with", "left"),
        ("", "left"),
    ):
        table.add_column(heading, justify="right" if side == "right" else "left")
    for one in verdicts:
        measured = "–" if one.figure is None else FIGURE.format(one.figure)
        rival = one.rival or ""
        beside = CONTENDERS[rival].label if rival in CONTENDERS else rival
        met = "[green]met[/green]" if one.met else "[red]missed[/red]"
        table.add_row(one.target.title, one.target.bound, measured, beside, met)
    console.print(table)


def show_conditions(console: Console, content: Mapping[str, Any]) -> None:
    """Prints where the figures were taken, and which of them on a loaded machine."""
    console.print("[dim]" + " · ".join(str(value) for value in content["environment"].values()) + "[/dim]")
    shared = {
        workload: one["others"] for workload, one in content["conditions"].items() if one["others"] > BUSY
    }
    for workload, share in shared.items():
        console.print(
            f"[yellow]machine load[/yellow]: other processes used {share:.0%} of the CPUs before {workload}"
        )


def as_json(machine: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Returns all figures, including each single run."""
    results = record.results()
    return {
        "environment": dict(machine),
        "conditions": {workload: dict(one) for workload, one in record.conditions.items()},
        "works": {
            workload: {
                name: {
                    "runs": [dict(run) for run in several],
                    "summary": {metric: asdict(one) for metric, one in results[workload][name].items()},
                }
                for name, several in contenders.items()
            }
            for workload, contenders in record.runs.items()
        },
        "failures": list(record.failures),
    }


def verdicts_as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Returns the verdicts as JSON values."""
    return [
        {
            "title": one.target.title,
            "wanted": one.target.bound,
            "measured": one.figure,
            "beside": one.rival,
            "kept": one.met,
        }
        for one in verdicts
    ]


def merge(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two runs. A workload is taken as a whole, from the later run if it has it."""
    failures = [line for line in earlier["failures"] if line.partition(",")[0] not in later["works"]]
    return {
        "environment": later["environment"],
        "conditions": {**earlier.get("conditions", {}), **later["conditions"]},
        "works": {**earlier["works"], **later["works"]},
        "failures": [*failures, *later["failures"]],
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(content: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Summary]]]:
    """Returns the results that `write_json` wrote, so that plots can be drawn without measuring again."""
    return {
        workload: {
            name: {metric: Summary(**one) for metric, one in figures["summary"].items()}
            for name, figures in contenders.items()
        }
        for workload, contenders in content["works"].items()
    }
