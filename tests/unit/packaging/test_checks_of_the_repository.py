"""The scripts of `make lint` that count: each refuses what it is for."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

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
    reasons = [{"check": "B608", "files": ["src/toril/lake/*.py"], "why": "own names"}]
    assert check.has_reason("B608", "src/toril/lake/lake.py", reasons)
    assert not check.has_reason("B608", "src/toril/cli/add.py", reasons)
    assert not check.has_reason("B602", "src/toril/lake/lake.py", reasons)
