"""The first thing people read is true: its programs run, and its tables and badges agree with their sources."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
DOCUMENTS = README.parent / "docs"
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


CLIENT = """
from fastapi.testclient import TestClient
from shop import web
from toril import sync

with TestClient(web) as client:
    job_id = client.post("/mails", params={"to": "a@b.c"}).json()["job"]
    with sync.Queue("emails") as queue:
        print(queue.get_job(job_id).wait_until_finished(timeout=20))
"""


def test_the_web_application_of_the_readme_is_short_and_runs_its_task(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(from fastapi.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    (tmp_path / "shop.py").write_text(program)
    run = subprocess.run(
        [sys.executable, "-c", CLIENT], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert (run.returncode, run.stdout) == (0, "sent to a@b.c\n"), run.stderr


def cells(line: str) -> list[str]:
    """The cells of a row of a table, without links and bold type."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
    return [cell.strip() for cell in plain.strip().strip("|").split("|")]


def rows_of(text: str, header: str) -> list[dict[str, str]]:
    """The rows of the table whose first cell is `header`."""
    lines = text[text.index(f"| {header} |") :].split("\n\n", 1)[0].splitlines()
    names = cells(lines[0])
    return [dict(zip(names, cells(line), strict=True)) for line in lines[2:]]


COLUMNS = {
    "toril": "toril",
    "BullMQ (Node)": "BullMQ 5.62.0",
    "bullmq-py": "bullmq-py",
    "Celery": "celery",
    "dramatiq": "dramatiq",
    "arq": "arq",
    "saq": "saq",
}


def test_the_comparison_agrees_with_the_page_of_features() -> None:
    features = {row["feature"]: row for row in rows_of((DOCUMENTS / "features.md").read_text(), "feature")}
    *shown, rates = rows_of(README.read_text(), "feature")
    assert len(shown) >= 15
    for row in shown:
        source = features[row["feature"]]
        assert {name: row[name] for name in COLUMNS} == {
            name: source[column] for name, column in COLUMNS.items()
        }
    table = (
        (DOCUMENTS / "performance" / "figures.md").read_text().split("### Processing, concurrency 100,")[1]
    )
    named = re.findall(r"^\| (?:\*\*)?(\S+?)(?:\*\*)? .*?\| ([\d,]+) \(", table.split("###")[0], re.MULTILINE)
    measured = dict(reversed(named))  # of two lines of one library, the first is the default
    for name, rival in (("toril", "toril"), ("Celery", "celery"), ("dramatiq", "dramatiq"), ("saq", "saq")):
        assert rates[name] == measured[rival]
    assert f"{rates['toril']} jobs a second" in README.read_text()


def test_the_badges_are_true() -> None:
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    versions = [one.rsplit(" ", 1)[1] for one in project["classifiers"] if "Python :: 3." in one]
    badges = {
        "licence": project["license"],
        "python": " | ".join(versions),
        "types": "mypy --strict",
        "bullmq": "5 and 6",
    }
    for name, value in badges.items():
        assert f": {value}</title>" in (DOCUMENTS / "images" / f"badge-{name}.svg").read_text()
        assert f"docs/images/badge-{name}.svg" in README.read_text()
    rivals = json.loads((README.parent / "tests/interop/node/package.json").read_text())["dependencies"]
    assert {rivals[name].rpartition("@")[2][0] for name in ("bullmq", "bullmq6")} == {"5", "6"}


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
