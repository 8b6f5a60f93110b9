"""What set-up installs is pinned to the byte, and comes from wherever the machine gets its packages."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
NODE = REPOSITORY / "tests/interop/node"


@pytest.mark.parametrize("file", ["dev.txt", "node.txt"])
def test_every_python_package_is_pinned_with_a_hash_and_no_address(file: str) -> None:
    text = (REPOSITORY / "requirements" / file).read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all(
        re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+ \\\n +--hash=sha256:[0-9a-f]{64}", entry)
        for entry in entries
    )
    assert "://" not in text


def test_every_npm_package_is_pinned_with_a_hash_and_no_registry() -> None:
    packages = json.loads((NODE / "package-lock.json").read_text())["packages"]
    installed = {name: entry for name, entry in packages.items() if name}
    assert all("integrity" in entry and "resolved" not in entry for entry in installed.values())


def test_the_reference_and_its_rival_generation_are_installed_side_by_side() -> None:
    wanted = json.loads((NODE / "package.json").read_text())["dependencies"]
    assert wanted["bullmq"] == "5.62.0"
    assert wanted["bullmq6"] == "npm:bullmq@6.7.0"


def test_the_build_takes_the_scripts_from_the_wheel_of_the_manifest() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    manifest = json.loads((REPOSITORY / "src/toril/commands/official/manifest.json").read_text())
    assert f"bullmq=={manifest['package']['version']}" in project["build-system"]["requires"]


def test_the_core_is_light() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[^a-z]", requirement)[0] for requirement in project["dependencies"]}
    assert needed == {"msgspec", "redis"}
