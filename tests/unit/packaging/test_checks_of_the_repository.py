"""The scripts of `make lint` that count: each refuses what it is for."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_test_that_sleeps_or_claims_nothing_is_refused(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        "def test_sleeps():\n    time.sleep(1)\n    assert True\n"
        "class TestB:\n    def test_claims_nothing(self):\n        print()\n"
        "async def test_yields():\n    await asyncio.sleep(0)\n    assert x\n"
        "def test_claims_by_a_helper():\n    assert_alike(a, b)\n"
    )
    check = script("check-tests")
    found = check.present(tmp_path)
    sleeping, claimless = "tests/test_a.py::test_sleeps", "tests/test_a.py::TestB::test_claims_nothing"
    assert found == {"sleeping": [sleeping], "without_claim": [claimless]}
    assert len(check.refused(found, {})) == 2
    why = "The time itself is what is measured."
    entries = {
        "sleeping": [{"test": sleeping, "why": why}],
        "without_claim": [{"test": claimless, "why": why}],
    }
    assert check.refused(found, entries) == []


def test_an_entry_for_a_test_needs_a_reason_and_a_test_that_needs_the_entry() -> None:
    check = script("check-tests")
    found = {"sleeping": ["a"], "without_claim": []}
    why = "The time itself is what is measured."
    for entry, problem in (
        ({"test": "a"}, "no reason"),
        ({"test": "a", "why": "  busy  "}, "no reason"),
    ):
        (line,) = check.refused(found, {"sleeping": [entry]})
        assert problem in line
    known = [{"test": "a", "why": why}, {"test": "a", "why": why}, {"test": "gone", "why": why}]
    lines = check.refused(found, {"sleeping": known})
    assert len(lines) == 2 and "'gone' needs no entry" in lines[0] and "'a' has 2 entries" in lines[1]


def test_a_finding_needs_a_reason_for_its_check_and_its_file() -> None:
    check = script("check-security")
    finding = ("B608", "src/toril/lake/lake.py", 7, "SQL")
    reason = {"check": "B608", "files": {"src/toril/lake/lake.py": 1}, "why": "own names"}
    assert check.refused([finding], [reason]) == []
    for found, reasons, problem in (
        ([finding], [], "1 findings of B608; 0 have a reason"),
        ([("B602", *finding[1:])], [reason], "1 findings of B602; 0 have a reason"),
        ([finding, finding], [reason], "2 findings of B608; 1 have a reason"),
        ([], [reason], "0 findings of B608; 1 have a reason"),
    ):
        lines = check.refused(found, reasons)
        assert any(problem in line for line in lines), problem


def test_a_figure_of_the_code_above_its_bound_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")  # the script imports another one
    report = script("code-report")
    (tmp_path / "module.py").write_text(
        "class Loop:\n    def __init__(self, a: Callable[[], int], b: int) -> None:\n        pass\n"
    )
    assert report.main([str(tmp_path)]) == 0
    assert "1  constructor parameters that are callbacks (at most 5)" in capsys.readouterr().out
    (tmp_path / "long.py").write_text("def f():\n" + "    x = 1\n" * 56)
    assert report.main([str(tmp_path)]) == 1
    assert "lines of a function, most: 57 is above 56" in capsys.readouterr().err


# --- messages -------------------------------------------------------------------------------------------------------

MODULE = """
class Missing(InvalidOption):
    pass

class TooLate(Exception):
    hint = "start earlier"
    def __init__(self, job, seconds):
        super().__init__(f"job {job} is {seconds} s late")

def work(queue, limit):
    problem = f"is {limit}"
    if limit < 0:
        raise InvalidOption("limit", problem)
    if limit > 9:
        raise InvalidOption("limit", problem, "give 0 to 9")
    if queue is None:
        raise TooLate("a", queue.seconds)
    logger.warning("%d jobs of %s wait", limit, queue)
    print_line(f"{limit} jobs")
"""


def test_messages_are_collected_from_the_code(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "work.py").write_text("class InvalidOption(ValueError): ...\n" + MODULE)
    names = runpy.run_path(str(ROOT / "scripts" / "collect-messages"))
    found = names["collect"](tmp_path)
    assert [(one.kind, one.text) for one in found] == [
        ("InvalidOption", "limit: is {limit}"),
        ("InvalidOption", "limit: is {limit}; give 0 to 9"),
        ("TooLate", "job a is {queue.seconds} s late; start earlier"),
        ("line", "{limit} jobs"),
        ("log, warning", "%d jobs of %s wait"),
    ]
    assert list(names["broken_rules"](found)) == ["part.work: InvalidOption has no remedy: limit: is {limit}"]


def test_the_page_of_messages_is_current_and_every_message_has_a_remedy() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "collect-messages"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
