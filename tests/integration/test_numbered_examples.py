"""The numbered examples, run as a user runs them: in an empty folder, with the embedded server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))

pytestmark = pytest.mark.timeout(300)  # two of them start Java, on shared cores


def expected_output(path: Path) -> str:
    """What the last comment of an example says that it prints."""
    _, marker, text = path.read_text(encoding="utf-8").rpartition("# prints:\n")
    assert marker, f"{path.name} does not say what it prints"
    return "".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORIL_")}
    try:
        run = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        assert run.stdout == expected_output(path)
        # Log lines have the stack trace of a failed job in one line.
        assert "Traceback (most recent call last):\n" not in run.stderr, run.stderr[-3000:]
    finally:
        stop = [sys.executable, "-m", "toril.cli", "server", "stop"]
        subprocess.run(stop, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)


def test_the_index_lists_every_example_in_order() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [path.name[:2] for path in NUMBERED] == [f"{number:02}" for number in range(1, 16)]
    listed = re.findall(r"\[(\d\d_\w+\.py)\]\((\d\d_\w+\.py)\)", index)
    assert listed == [(path.name, path.name) for path in NUMBERED]
    others = {path.name for path in EXAMPLES.iterdir() if path not in NUMBERED and path.name != "README.md"}
    for name in others - {"__pycache__"}:
        assert f"({name})" in index, f"the index does not name {name}"
