"""Applications are typed: `mypy --strict` and pyright accept a right program, and reject each planted mistake."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "typing" / "tasks.py"

MISTAKES = {
    "wrong argument": 'await send.enqueue("a@b.c", subject="Hi")',
    "wrong type": "await send.enqueue(5)",
    "wrong result type": "number: str = await (await send.enqueue('a')).result()",
    "unknown option": "send.options(dely=60)",
    "wrong resource": "database: str = (await make_context()).resources.database",
    "awaiting a sync twin": 'await notify.enqueue("a@b.c")',
    "missing argument": "await send.enqueue()",
    "wrong dependency": "text: str = Depends(transaction)",
    "unknown option of a task": 'app.task(queue="x", atempts=5)',
    "wrong step": "parallel_then([measure.bind('a')], store)",
}
HEAD = """async def make_context() -> Context[Resources]: ...  # type: ignore[empty-body]


async def mistaken() -> None:
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program with one function for each mistake; each is on a line of its own."""
    path = tmp_path / "shop.py"
    lines = "".join(f"    {text}\n" for text in MISTAKES.values())
    path.write_text(f"{PROGRAM.read_text()}\n\n{HEAD}{lines}")
    return path


def lines_with_mistakes(program: Path) -> dict[int, str]:
    texts = program.read_text().splitlines()
    return {texts.index(f"    {text}") + 1: name for name, text in MISTAKES.items()}


def rejected(output: str, wanted: dict[int, str]) -> tuple[set[str], set[int]]:
    """The mistakes that were found, and the lines of other errors."""
    found = {int(line) for line in re.findall(r"shop\.py:(\d+)(?::\d+)?(?: -|:) error", output)}
    return {wanted[line] for line in found if line in wanted}, found - set(wanted)


@pytest.mark.timeout(180)
def test_mypy_rejects_every_mistake_and_nothing_else(program: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
        str(program),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    wanted = lines_with_mistakes(program)
    assert rejected(run.stdout, wanted) == (set(MISTAKES), set()), run.stdout


@pytest.mark.timeout(180)
def test_pyright_rejects_every_mistake_and_nothing_else(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(program)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    wanted = lines_with_mistakes(program)
    assert rejected(run.stdout, wanted) == (set(MISTAKES), set()), run.stdout
