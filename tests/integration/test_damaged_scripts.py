"""A script that is not the official one is refused by whoever would run it; nobody waits for ever."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toril
from tests.servers import Server

PROGRAMS = {
    "a queue": """
async with Queue("q", redis=url, prefix=prefix) as queue:
    await queue.add("a", {})
""",
    "a queue that adds many": """
async with Queue("q", redis=url, prefix=prefix) as queue:
    await queue.add_bulk([("a", {})] * 20)
""",
    "a blocking queue": """
with sync.Queue("q", redis=url, prefix=prefix) as queue:
    queue.add("a", {})
""",
    "a worker": """
await Worker("q", print, redis=url, prefix=prefix).run()
""",
}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A copy of the package in which one byte of each script for adding and finishing is wrong."""
    source = Path(toril.__file__).parent
    shutil.copytree(source, tmp_path / "toril", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("addStandardJob-9", "moveToFinished-14"):
        script = tmp_path / f"toril/commands/official/{name}.lua"
        script.write_bytes(script.read_bytes()[:-2] + b"X\n")
    return tmp_path


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_a_damaged_script_is_reported_when_it_is_used(
    damaged: Path, valkey: Server, prefix: str, body: str
) -> None:
    indented = body.replace("\n", "\n    ")
    program = (
        f"import asyncio, sys\nsys.path.insert(0, {str(damaged)!r})\nfrom toril import Queue, Worker, sync\n"
        f"url, prefix = {valkey.url!r}, {prefix!r}\nasync def main():{indented}\nasyncio.run(main())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    said = [line for line in run.stderr.splitlines() if line.startswith("toril.errors.ScriptsCorrupt: ")]
    assert len(said) == 1, run.stderr
    assert "has SHA-256" in said[0]
    assert said[0].endswith("reinstall toril")
