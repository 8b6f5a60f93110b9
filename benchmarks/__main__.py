"""`python -m benchmarks`: measures toril beside its rivals, shows the ratios, and checks the promises if asked to."""

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
from benchmarks.environment import Arena
from benchmarks.runner import AttemptRunner
from benchmarks.workloads import Work, full_plan, quick_plan
from tests.servers import Server

WIDE = 150  # characters of a table, where the output is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    if options.draw:
        content = json.loads(options.draw.read_text(encoding="utf-8"))
        folder = options.plots or Path("docs/performance")
        _draw(console, report.read_results(content), folder)
        (folder / "figures.md").write_text(page.page(content, full_plan()), encoding="utf-8")
        return 0
    plan = _chosen(full_plan() if options.full else quick_plan(), options.only)
    # Memory of the last run must be free when the next one is measured.
    with Server.valkey(lazyfree_lazy_user_flush="no") as server:
        arena = Arena(server)
        try:
            return _measure(console, arena, plan, options)
        finally:
            arena.close()


def _measure(console: Console, arena: Arena, plan: Sequence[Work], options: argparse.Namespace) -> int:
    runner = AttemptRunner(arena, repeat=options.repeat, rivals=options.rivals)
    where = report.environment(arena.server_version())
    earlier = json.loads(options.json.read_text("utf-8")) if options.add and options.json.exists() else None
    content: dict[str, Any] = {}
    for work in plan:
        figures = runner.run(work)
        if figures:
            report.show_work(console, work.title, figures, work.contenders[0])
        content = report.as_json(where, runner.record)
        content = report.together(earlier, content) if earlier else content
        if options.json:  # after each work: a run that is cut short keeps what it has
            report.write_json(options.json, content)
    return _told(console, content, options)


def _told(console: Console, content: dict[str, Any], options: argparse.Namespace) -> int:
    results = report.read_results(content)
    ack_errors = targets.decide_outcome(results)
    report.show_verdicts(console, ack_errors)
    report.show_circumstances(console, content)
    if options.json:
        report.write_json(options.json, {**content, "targets": report.told(ack_errors)})
    if options.plots:
        _draw(console, results, options.plots)
    return _judged(console, ack_errors) if options.check else 0


def _judged(console: Console, ack_errors: Sequence[targets.Verdict]) -> int:
    short = targets.missed(ack_errors)
    for line in short:
        console.print(f"[red]fell short[/red]: {line}")
    return 1 if short else 0


def _draw(console: Console, results: targets.Results, folder: Path) -> int:
    written = plots.draw(results, folder)
    console.print(f"{len(written)} plots in {folder}")
    return 0


def _chosen(plan: Sequence[Work], only: Sequence[str]) -> list[Work]:
    names = {work.name for work in plan}
    # A whole name means that work alone: process-1 is not process-10.
    chosen = [
        work
        for work in plan
        if not only
        or work.name in only
        or any(work.name.startswith(start) for start in only if start not in names)
    ]
    if not chosen:
        raise SystemExit(f"no such work: choose among {', '.join(work.name for work in plan)}")
    return chosen


def _rivals(words: str) -> list[str]:
    try:
        return [one.name for one in named([word.strip() for word in words.split(",") if word.strip()])]
    except UnknownContender as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="everything, at length (default: under five minutes)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORK",
        help="works of this name, or that begin so; repeatable",
    )
    parser.add_argument(
        "--rivals", type=_rivals, metavar="A,B", help=f"only these beside toril: {', '.join(CONTENDERS)}"
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="rounds of each work (default: three to nine)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--add", action="store_true", help="keep what earlier runs wrote to that file about other works"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots (SVG) there")
    parser.add_argument(
        "--draw", type=Path, metavar="FILE", help="plots and tables of figures written before"
    )
    parser.add_argument("--assert", dest="check", action="store_true", help="fail when a promise is not kept")
    options = parser.parse_args(arguments)
    if options.add and options.json is None:
        parser.error("--add needs --json FILE")
    return options


if __name__ == "__main__":
    sys.exit(main())
