"""Runs recipes, each in an environment of its own: `python -m recipes.run [NAME…]`, or `make recipes`.

A recipe is a folder with `requirements.txt` and `run.sh`. It gets these variables: TORIL_REDIS_URL, a server with
queues whose jobs were processed; TORIL, the program `toril` of this checkout; LAKE, the folder of the tables; WORK, a
folder for everything else. Environments are kept in .cache/recipes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers import Server
from tests.spark.factory import Factory

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parent
NAMES: Final = tuple(sorted(one.parent.name for one in FOLDER.glob("*/run.sh")))
JOBS: Final = 200
_SECONDS: Final = 900  # of one recipe


def environment_of(name: str) -> Path:
    """The environment of a recipe; it is made, or brought up to date, if its requirements changed."""
    place = ROOT / ".cache" / "recipes" / name
    requirements = FOLDER / name / "requirements.txt"
    stamp = place / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        words = {**os.environ, "ROOT": str(ROOT)}
        subprocess.run([*pip, "--requirement", str(requirements)], check=True, env=words)
        stamp.write_text(requirements.read_text())
    return place


def fill(url: str) -> None:
    """Two queues with jobs that completed, were retried and failed."""
    for name in ("emails", "reports"):
        with Factory(url, name, "bull") as queue:
            queue.add(JOBS)
            queue.work(fail=0.1, retry=0.1)


def run(name: str) -> bool:
    """Runs a recipe; whether it succeeded."""
    place = environment_of(name)
    with Server.valkey() as server, tempfile.TemporaryDirectory(prefix="toril-recipe-") as work:
        fill(server.url)
        variables = {
            **os.environ,
            "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(place),
            "TORIL_REDIS_URL": server.url,
            "TORIL": str(Path(sys.executable).parent / "toril"),
            "LAKE": f"{work}/lake",
            "WORK": work,
        }
        variables.pop("PYTHONPATH", None)
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "run.sh"], cwd=FOLDER / name, env=variables, timeout=_SECONDS, check=False
        )
    result = "succeeded" if done.returncode == 0 else f"ended with {done.returncode}"
    print(f"recipe {name}: {result} after {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main(names: Sequence[str]) -> int:
    unknown = [one for one in names if one not in NAMES]
    if unknown:
        print(f"no recipe {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    results = [run(one) for one in names or NAMES]  # all of them, even if one fails
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
