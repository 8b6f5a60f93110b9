"""The first thing people read is true: its program runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
PROGRAM_AND_OUTPUT = re.compile(r"```python\n(?P<program>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)


def shown_program() -> re.Match[str]:
    found = PROGRAM_AND_OUTPUT.search(README.read_text())
    assert found is not None
    return found


def test_the_program_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    shown = shown_program()
    command = [sys.executable, "-W", "error", "-c", shown["program"]]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (run.stdout, run.returncode) == (shown["output"], 0)
    (warning,) = run.stderr.splitlines()
    assert warning.startswith(f"no server was named: using the embedded one in {tmp_path}/.toril;")


def test_the_program_of_the_readme_is_short() -> None:
    program = shown_program()["program"]
    assert len(program.splitlines()) <= 15


def test_every_file_the_documents_point_to_exists() -> None:
    documents = [README, README.with_name("CONTRIBUTING.md"), *(README.parent / "docs").glob("*.md")]
    targets = [(document, target) for document in documents for target in _links(document)]
    missing = [
        f"{document.name} → {target}"
        for document, target in targets
        if not (document.parent / target).exists()
    ]
    assert targets
    assert missing == []


def _links(document: Path) -> list[str]:
    """Targets of relative links, without their anchors."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    return [target for target in found if "://" not in target]
