"""Puts BullMQ's official Lua scripts into the package while it is built.

Guarantee: a build either contains exactly the scripts whose SHA-256 stands in the committed manifest, or it fails
and names the first file that is wrong. The scripts come out of the `bullmq` wheel, a build requirement, and are never
committed. A script that is already in the tree is checked, not overwritten: a damaged one is reported, not hidden.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OFFICIAL = Path("src/toril/commands/official")


class ScriptIntegrityError(Exception):
    """An official script is missing, unexpected or not the one the manifest names."""


class OfficialScriptsHook(BuildHookInterface[Any]):
    """Runs before every wheel, sdist and editable build."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version, build_data
        place_official_scripts(Path(self.root) / OFFICIAL)


def place_official_scripts(target: Path) -> None:
    """Make `target` hold exactly the scripts of its manifest."""
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    expected: dict[str, str] = manifest["scripts"]
    check_scripts(target, expected, must_be_complete=False)
    source = find_wheel_scripts(manifest["package"]["version"])
    if source is not None:
        check_scripts(source, expected, must_be_complete=True)
        copy_missing(source, target, expected)
    check_scripts(target, expected, must_be_complete=True)


def find_wheel_scripts(version: str) -> Path | None:
    """The scripts of the installed `bullmq` wheel; None where it is absent (an unpacked sdist has its own)."""
    spec = importlib.util.find_spec("bullmq")
    if spec is None or not spec.submodule_search_locations:
        return None
    installed = importlib.metadata.version("bullmq")
    if installed != version:
        raise ScriptIntegrityError(
            f"bullmq {installed} is installed, but the manifest was made for bullmq {version}. "
            f"Build with build isolation, or install bullmq=={version} first."
        )
    return Path(spec.submodule_search_locations[0]) / "commands"


def check_scripts(folder: Path, expected: dict[str, str], *, must_be_complete: bool) -> None:
    """Raise for the first script in `folder` that the manifest does not vouch for."""
    present = {path.name: path for path in sorted(folder.glob("*.lua"))}
    for name, path in present.items():
        if name not in expected:
            raise ScriptIntegrityError(
                f"{path} is not in the manifest of official scripts. Delete the file and build again."
            )
        check_digest(path, expected[name])
    missing = sorted(expected.keys() - present.keys())
    if must_be_complete and missing:
        raise ScriptIntegrityError(
            f"{folder / missing[0]} is missing ({len(missing)} of {len(expected)} official scripts are). "
            "Build with build isolation, so that the bullmq wheel named in pyproject.toml is there to copy from."
        )


def check_digest(path: Path, expected: str) -> None:
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        raise ScriptIntegrityError(
            f"{path} is not the official script: its SHA-256 is {actual}, the manifest says {expected}. "
            "Delete the file and build again; if that does not help, the bullmq wheel itself was altered."
        )


def copy_missing(source: Path, target: Path, expected: dict[str, str]) -> None:
    for name in expected:
        if not (target / name).exists():
            (target / name).write_bytes((source / name).read_bytes())
