"""`python -m benchmarks`: measures toril and its rivals, prints the ratios and, with --assert, checks the targets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import page, plots, report, targets
from benchmarks.contenders import CONTENDERS, UnknownContender, named
from benchmarks.persistence import MODES, Environments
from benchmarks.runner import BenchmarkRunner
from benchmarks.workloads import Workload, full_plan, quick_plan

WIDE = 150  # characters of a table, where the output is not a terminal


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    if options.draw:
        content = json.loads(options.draw.read_text(encoding="utf-8"))
        folder = options.plots or Path("docs/performance")
        _draw(console, report.read_results(content), folder)
        (folder / "figures.md").write_text(page.page(content, full_plan()), encoding="utf-8")
        return 0
    plan = full_plan() if options.full else quick_plan()
    modes = options.persistence or MODES
    plan = _selected([workload for workload in plan if workload.persistence in modes], options.only)
    with Environments() as environments:
        return _measure(console, environments, plan, options)


def _measure(
    console: Console, environments: Environments, plan: Sequence[Workload], options: argparse.Namespace
) -> int:
    runner = BenchmarkRunner(environments.of, repeat=options.repeat, rivals=options.rivals)
    where = report.describe_machine(environments.of(plan[0].persistence).server_version())
    earlier = json.loads(options.json.read_text("utf-8")) if options.add and options.json.exists() else None
    content: dict[str, Any] = {}
    for workload in plan:
        figures = runner.run(workload)
        if figures:
            report.show_workload(console, workload.title, figures, workload.contenders[0])
        content = report.as_json(where, runner.record)
        content = report.merge(earlier, content) if earlier else content
        if options.json:  # After each workload, so that an interrupted run keeps its figures.
            report.write_json(options.json, content)
    return _report_results(console, content, options)


def _report_results(console: Console, content: dict[str, Any], options: argparse.Namespace) -> int:
    results = report.read_results(content)
    verdicts = targets.check_targets(results)
    report.show_verdicts(console, verdicts)
    report.show_conditions(console, content)
    if options.json:
        report.write_json(options.json, {**content, "targets": report.verdicts_as_json(verdicts)})
    if options.plots:
        _draw(console, results, options.plots)
    return _exit_code(console, verdicts) if options.check else 0


def _exit_code(console: Console, verdicts: Sequence[targets.Verdict]) -> int:
    missed = targets.missed(verdicts)
    for line in missed:
        console.print(f"[red]missed[/red]: {line}")
    return 1 if missed else 0


def _draw(console: Console, results: targets.Results, folder: Path) -> int:
    written = plots.draw(results, folder)
    console.print(f"{len(written)} plots in {folder}")
    return 0


def _selected(plan: Sequence[Workload], only: Sequence[str]) -> list[Workload]:
    names = {workload.name for workload in plan}
    # A complete name selects only that workload: process-1 does not select process-10.
    chosen = [
        workload
        for workload in plan
        if not only
        or workload.name in only
        or any(workload.name.startswith(start) for start in only if start not in names)
    ]
    if not chosen:
        raise SystemExit(f"no such workload: choose among {', '.join(workload.name for workload in plan)}")
    return chosen


def _rivals(text: str) -> list[str]:
    try:
        return [one.name for one in named([name.strip() for name in text.split(",") if name.strip()])]
    except UnknownContender as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="all workloads (default: the quick plan, about ten minutes)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORK",
        help="the workload of this name, or those whose names begin with it; repeatable",
    )
    parser.add_argument(
        "--persistence",
        action="append",
        choices=MODES,
        help="only workloads with this persistence of the server; repeatable (default: all of the plan)",
    )
    parser.add_argument(
        "--rivals", type=_rivals, metavar="A,B", help=f"only these beside toril: {', '.join(CONTENDERS)}"
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="rounds of each workload (default: three to nine)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--add", action="store_true", help="keep other workloads in that file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots (SVG) to this folder")
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="draw the figures in this file, without measuring"
    )
    parser.add_argument(
        "--assert", dest="check", action="store_true", help="exit with 1 when a target is missed"
    )
    options = parser.parse_args(arguments)
    if options.add and options.json is None:
        parser.error("--add needs --json FILE")
    return options


if __name__ == "__main__":
    sys.exit(main())
