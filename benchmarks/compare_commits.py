"""`python -m benchmarks.compare_commits COMMIT`: measures the working tree beside an older commit, interleaved.

Guarantee: both sides use the same Python, packages and server, and alternate in order. A ratio is computed
per round, so that a slow minute of the machine affects both sides; the median of the ratios is the result.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.contenders import ROOT, TORIL, Contender
from benchmarks.environment import Environment
from benchmarks.workloads import QUEUE, Workload, adding, bulk, latency, processing
from tests.servers import Server

CHECKOUTS = ROOT / ".cache" / "commits"
OFFICIAL = Path("src/toril/commands/official")
# Latency is better when it is lower; every other figure is a rate.
LOWER_IS_BETTER = {"latency": "started_p50"}

WORKS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        processing(100, 24_000),
        processing(1, 5000),
        adding(1, 4000),
        adding(50, 16_000),
        bulk(30_000),
        latency(120),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    old = _side("old", checked_out(options.commit))
    new = _side("new", ROOT)
    with Server.valkey(lazyfree_lazy_user_flush="no") as server:
        environment = Environment(server)
        try:
            medians = [_compare(environment, WORKS[name], old, new, options.rounds) for name in options.works]
        finally:
            environment.close()
    return 1 if options.at_least and min(medians) < options.at_least else 0


def _compare(
    environment: Environment, workload: Workload, old: Contender, new: Contender, rounds: int
) -> float:
    """Returns the median ratio of new to old over all rounds; above 1 the new side is better."""
    ratios = []
    for number in range(rounds):
        order = (old, new) if number % 2 else (new, old)
        figures = {side.name: _measured(environment, workload, side) for side in order}
        ratio = figures["new"] / figures["old"]
        ratios.append(1 / ratio if workload.name in LOWER_IS_BETTER else ratio)
    median = statistics.median(ratios)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(
        f"{workload.name:12} new/old {median:.3f}   ({rounds} rounds, {spread}; above 1 is better)",
        flush=True,
    )
    return median


def _measured(environment: Environment, workload: Workload, side: Contender) -> float:
    figures = workload.measure(
        environment, side, {**workload.parameters, "queue": QUEUE, "jobs": workload.jobs}
    )
    return figures[LOWER_IS_BETTER.get(workload.name, "rate")]


def _side(name: str, checkout: Path) -> Contender:
    return replace(TORIL, name=name, label=name, variables={"PYTHONPATH": str(checkout / "src")})


def checked_out(commit: str) -> Path:
    """Returns a folder with the sources of the commit and the official scripts of this working tree."""
    sha = _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    folder = CHECKOUTS / sha
    if not folder.exists():
        with tarfile.open(fileobj=io.BytesIO(_git("archive", sha, "src"))) as archive:
            archive.extractall(folder, filter="data")
    for script in (ROOT / OFFICIAL).glob("*.lua"):
        (folder / OFFICIAL / script.name).write_bytes(script.read_bytes())
    return folder


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_commits", description=__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--works", nargs="+", choices=[*WORKS], default=["process-100", "process-1"])
    parser.add_argument("--at-least", type=float, help="exit with 1 if a median is below this")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
