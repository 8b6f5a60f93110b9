"""The scripts of `make lint` that count: each refuses what it is for."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections import Counter
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


def test_a_new_test_that_sleeps_or_claims_nothing_is_refused(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(
        "def test_sleeps():\n    time.sleep(1)\n    assert True\n"
        "def test_claims_nothing():\n    print()\n"
        "async def test_yields():\n    await asyncio.sleep(0)\n    assert x\n"
    )
    check = script("check-tests")
    found = check.present(tmp_path)
    assert found == {
        "sleeping": Counter({"tests/test_a.py": 1}),
        "without_claim": Counter({"tests/test_a.py": 1}),
    }
    assert len(check.refused(found, {})) == 2
    assert (
        check.refused(found, {"sleeping": {"tests/test_a.py": 1}, "without_claim": {"tests/test_a.py": 1}})
        == []
    )


def test_a_finding_needs_a_reason_for_its_check_and_its_file() -> None:
    check = script("check-security")
    reasons = [{"check": "B608", "files": ["src/toril/lake/*.py"], "why": "own names"}]
    assert check.has_reason("B608", "src/toril/lake/lake.py", reasons)
    assert not check.has_reason("B608", "src/toril/cli/add.py", reasons)
    assert not check.has_reason("B602", "src/toril/lake/lake.py", reasons)
