"""`python -m benchmarks.shell COMMIT`: the processor time of short processes, beside an older commit.

Guarantee: both sides use the same Python, packages and server, and alternate. The figure is user and system time of one
process from its start to its end; a ratio is computed per round, and the median of the ratios is the result.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.compare_commits import checked_out
from benchmarks.contenders import ROOT
from tests.servers import Server

# Largest ratio of new to old.
TARGET: Final = 0.6

_ADD: Final = """
import asyncio
from toril import Queue

async def main():
    async with Queue("shell") as queue:
        await queue.add("job", {"number": 1})

asyncio.run(main())
"""
_TORIL: Final = "from toril.cli import main; main()"

WORKS: Final[Mapping[str, Sequence[str]]] = {
    "toril --help": ("-c", _TORIL, "--help"),
    "toril queues": ("-c", _TORIL, "queues"),
    "import Queue": ("-c", "from toril import Queue"),
    "add one job": ("-c", _ADD),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    sides = {"old": checked_out(options.commit), "new": ROOT}
    with Server.valkey() as server, tempfile.TemporaryDirectory() as folder:
        medians = [
            _compare(name, words, sides, options.rounds, server.url, Path(folder))
            for name, words in WORKS.items()
        ]
    return 1 if options.check and max(medians) > TARGET else 0


def _compare(
    name: str, words: Sequence[str], sides: Mapping[str, Path], rounds: int, url: str, folder: Path
) -> float:
    found = []
    for number in range(rounds + 1):
        order = ("old", "new") if number % 2 else ("new", "old")
        found.append({side: _seconds(words, sides[side], url, folder) for side in order})
    del found[0]  # it compiled the modules
    median = statistics.median(one["new"] / one["old"] for one in found)
    times = {side: 1000 * statistics.median(one[side] for one in found) for side in sides}
    print(
        f"{name:14} new/old {median:.2f}   ({times['new']:.0f} and {times['old']:.0f} ms of CPU, {rounds} rounds)",
        flush=True,
    )
    return median


def _seconds(words: Sequence[str], checkout: Path, url: str, folder: Path) -> float:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TORIL_REDIS_URL": url}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shell", description=__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a median is above {TARGET}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
