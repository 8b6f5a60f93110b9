"""`python -m benchmarks.pipeline_shell COMMIT`: `toril pipeline run` from the shell, beside an older commit.

Guarantee: both sides read the same queues with the same Python and packages, each into a lake of its own, and alternate
in order. A ratio is computed per round; the median of the ratios is the result. Memory is the largest sum over all
processes of a run, shared pages counted once (PSS).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.compare_commits import checked_out
from benchmarks.contenders import ROOT
from tests.servers import Server
from tests.spark.factory import Factory

PREFIX: Final = "bench"
QUEUES: Final = 4
EVENTS_PER_JOB: Final = 4  # added, waiting, active, completed
SIZES: Final = (0, 1_000, 500_000)
# Largest ratio of new to old, by the number of events.
TIME_TARGETS: Final = {0: 0.15, 1_000: 0.45, 500_000: 0.7}
MEMORY_TARGETS: Final = {500_000: 0.7}
_SAMPLED_EVERY: Final = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Run:
    """One run from the shell."""

    seconds: float
    megabytes: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    sides = {"old": checked_out(options.commit), "new": ROOT}
    missed = [size for size in options.events if not _compare(size, sides, options.rounds)]
    return 1 if options.check and missed else 0


def _compare(events: int, sides: dict[str, Path], rounds: int) -> bool:
    """Measures one size and prints it; whether the targets are met."""
    with Server.valkey() as server, tempfile.TemporaryDirectory() as place:
        _fill(server.url, events or SIZES[1])
        found = [_round(number, events, server.url, Path(place), sides) for number in range(rounds)]
    times = statistics.median(one["new"].seconds / one["old"].seconds for one in found)
    memory = statistics.median(one["new"].megabytes / one["old"].megabytes for one in found)
    for side in sides:
        seconds, peak = ([getattr(one[side], name) for one in found] for name in ("seconds", "megabytes"))
        print(f"  {side}: {statistics.median(seconds):.2f} s, {statistics.median(peak):.0f} MB")
    print(f"{events} events: time {times:.2f} x, memory {memory:.2f} x", flush=True)
    return times <= TIME_TARGETS.get(events, 1) and memory <= MEMORY_TARGETS.get(events, 1)


def _round(number: int, events: int, url: str, place: Path, sides: dict[str, Path]) -> dict[str, Run]:
    order = list(sides) if number % 2 == 0 else list(reversed(sides))
    found = {}
    for side in order:
        lake = place / f"{side}-lake"
        if events:
            shutil.rmtree(lake, ignore_errors=True)
        elif not lake.exists():
            _measured(sides[side], url, lake)  # what is there is read before the measurement
        found[side] = _measured(sides[side], url, lake)
        one = found[side]
        print(f"    round {number + 1}, {side}: {one.seconds:.2f} s, {one.megabytes:.0f} MB", flush=True)
    return found


def _fill(url: str, events: int) -> None:
    jobs = events // EVENTS_PER_JOB // QUEUES
    for number in range(QUEUES):
        with Factory(url, f"queue-{number}", PREFIX) as queue:
            queue.add(jobs)
            queue.work(fail=0.02, retry=0.02)


def _measured(side: Path, url: str, lake: Path) -> Run:
    command = [sys.executable, "-m", "toril.cli", "pipeline", "run", "--lake", str(lake)]
    words = ["--redis", url, "--prefix", PREFIX, "--streams", ""]
    environment = {**os.environ, "PYTHONPATH": str(side / "src"), "PYTHONSAFEPATH": "1"}
    began = time.monotonic()
    run = subprocess.Popen([*command, *words], env=environment, stdout=subprocess.DEVNULL, cwd=lake.parent)
    peak = 0.0
    while not _ends_within(run, _SAMPLED_EVERY):
        peak = max(peak, _megabytes(run.pid))
    seconds = time.monotonic() - began
    if run.returncode:
        raise SystemExit(f"the run in {side} ended with {run.returncode}")
    return Run(seconds, peak)


def _ends_within(run: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        run.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _megabytes(pid: int) -> float:
    try:
        process = psutil.Process(pid)
        return sum(_pss(one) for one in (process, *process.children(recursive=True))) / 1e6
    except psutil.Error:
        return 0.0


def _pss(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_shell", description=__doc__)
    parser.add_argument("commit", help="the older side, as git names it")
    parser.add_argument(
        "--events", type=int, nargs="+", default=list(SIZES), help="events that are new; 0: none"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--assert", dest="check", action="store_true", help="fail when a target is missed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
