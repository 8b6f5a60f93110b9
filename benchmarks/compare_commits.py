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
from benchmarks.persistence import MODES, Environments
from benchmarks.workloads import QUEUE, Workload, adding, bulk, latency, persisted_name, processing

CHECKOUTS = ROOT / ".cache" / "commits"
OFFICIAL = Path("src/toril/commands/official")
# Latency is better when it is lower; every other figure is a rate.
LOWER_IS_BETTER = {"latency": "started_p50"}
# Also compared where they are measured: CPU time of both sides, and bytes of the append-only file, for each job.
COSTS = ("client_us", "server_us", "file_bytes")

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
    with Environments() as environments:
        environment = environments.of(options.persistence)
        medians = [
            _compare(
                environment, replace(WORKS[name], persistence=options.persistence), old, new, options.rounds
            )
            for name in options.works
        ]
    return 1 if options.at_least and min(medians) < options.at_least else 0


def _compare(
    environment: Environment, workload: Workload, old: Contender, new: Contender, rounds: int
) -> float:
    """Returns the median ratio of new to old over all rounds; above 1 the new side is better."""
    found: list[dict[str, Mapping[str, float]]] = []
    for number in range(rounds):
        order = (old, new) if number % 2 else (new, old)
        found.append({side.name: _measured(environment, workload, side) for side in order})
    lead = LOWER_IS_BETTER.get(workload.name, "rate")
    ratios = [one["new"][lead] / one["old"][lead] for one in found]
    if workload.name in LOWER_IS_BETTER:
        ratios = [1 / ratio for ratio in ratios]
    median = statistics.median(ratios)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    title = persisted_name(workload.name, workload.persistence)
    print(f"{title:20} new/old {median:.3f}   ({rounds} rounds, {spread}; above 1 is better)", flush=True)
    for cost in COSTS:
        if all(cost in side for one in found for side in one.values()):
            costs = statistics.median(one["new"][cost] / one["old"][cost] for one in found)
            print(f"{cost:>20} new/old {costs:.3f}   (below 1 is better)", flush=True)
    return median


def _measured(environment: Environment, workload: Workload, side: Contender) -> Mapping[str, float]:
    return workload.measure(environment, side, {**workload.parameters, "queue": QUEUE, "jobs": workload.jobs})


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
    parser.add_argument("--persistence", choices=MODES, default="none", help="of the server")
    parser.add_argument("--at-least", type=float, help="exit with 1 if a median is below this")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
