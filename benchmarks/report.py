"""Shows a run: tables for people, JSON for programs."""

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

# Under which heading a metric is shown, and how.
COLUMNS: Mapping[str, tuple[str, str]] = {
    "rate": ("jobs/s", "{:,.0f}"),
    "client_us": ("client µs", "{:.1f}"),
    "server_us": ("server µs", "{:.1f}"),
    "rss_mb": ("worker MB", "{:.0f}"),
    "memory_mb": ("MB per 10k done", "{:.2f}"),
    "shallow_rate": ("jobs/s with 1,000 waiting", "{:,.0f}"),
    "beside_shallow": ("ratio", "{:.2f}"),
}
FIGURE = "{:.2f}"


def environment(server_version: str) -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "server": f"Valkey {server_version}, no persistence, loopback",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def show_work(console: Console, title: str, results: Mapping[str, Mapping[str, Summary]], ours: str) -> None:
    """One table: each contender's medians, and how many times theirs ours is."""
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


def show_verdicts(console: Console, ack_errors: Sequence[Verdict]) -> None:
    """Which promises the run kept."""
    table = Table(title="targets", title_justify="left", title_style="bold")
    for heading, side in (
        ("", "left"),
        ("wanted", "right"),
        ("measured", "right"),
        ("beside", "left"),
        ("", "left"),
    ):
        table.add_column(heading, justify="right" if side == "right" else "left")
    for one in ack_errors:
        measured = "–" if one.figure is None else FIGURE.format(one.figure)
        rival = one.rival or ""
        beside = CONTENDERS[rival].label if rival in CONTENDERS else rival
        kept = "[green]kept[/green]" if one.kept else "[red]missed[/red]"
        table.add_row(one.target.title, one.target.bound, measured, beside, kept)
    console.print(table)


def show_circumstances(console: Console, content: Mapping[str, Any]) -> None:
    """Where the figures were taken, and which of them beside other work."""
    console.print("[dim]" + " · ".join(str(value) for value in content["environment"].values()) + "[/dim]")
    shared = {work: one["others"] for work, one in content["conditions"].items() if one["others"] > BUSY}
    for work, share in shared.items():
        console.print(f"[yellow]not quiet[/yellow]: others used {share:.0%} of the processors before {work}")


def as_json(environment: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Everything, down to the single run."""
    results = record.results()
    return {
        "environment": dict(environment),
        "conditions": {work: dict(one) for work, one in record.conditions.items()},
        "works": {
            work: {
                name: {
                    "runs": [dict(run) for run in several],
                    "summary": {metric: asdict(one) for metric, one in results[work][name].items()},
                }
                for name, several in contenders.items()
            }
            for work, contenders in record.runs.items()
        },
        "failures": list(record.failures),
    }


def told(ack_errors: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Verdicts for programs."""
    return [
        {
            "title": one.target.title,
            "wanted": one.target.bound,
            "measured": one.figure,
            "beside": one.rival,
            "kept": one.kept,
        }
        for one in ack_errors
    ]


def together(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Two runs in one record: a work is taken whole, from the later run if that has it."""
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
    """Results from what `write_json` wrote: plots can be drawn again without measuring again."""
    return {
        work: {
            name: {metric: Summary(**one) for metric, one in said["summary"].items()}
            for name, said in contenders.items()
        }
        for work, contenders in content["works"].items()
    }
