"""The programs in the documents about queues, jobs and events run and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = (
    "applications",
    "testing",
    "errors-and-retries",
    "queues",
    "groups",
    "workers",
    "events",
    "flows-and-schedules",
    "blocking",
    "connections",
    "moving",
    "outbox",
    "codecs",
    "deployment",
    "tutorial",
)
DOCUMENTS = Path(__file__).parents[2] / "docs"
PROGRAM_AND_OUTPUT = re.compile(r"```python\n(?P<program>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


def programs() -> list[object]:
    found: list[object] = []
    for name in NAMES:
        text = (DOCUMENTS / f"{name}.md").read_text()
        for number, shown in enumerate(PROGRAM_AND_OUTPUT.finditer(text), 1):
            found.append(pytest.param(shown["program"], shown["output"], id=f"{name} {number}"))
    return found


@pytest.mark.parametrize(("program", "output"), programs())
def test_a_program_prints_what_its_document_says(program: str, output: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (run.stdout, run.returncode) == (output, 0), run.stderr


def test_every_program_has_its_output() -> None:
    for name in NAMES:
        text = (DOCUMENTS / f"{name}.md").read_text()
        assert len(PROGRAM_AND_OUTPUT.findall(text)) == text.count("```python")
