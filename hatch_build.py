"""Puts BullMQ's official Lua scripts and the dashboard's htmx into the package while it is built.

Guarantee: a build either contains exactly the files whose SHA-256 stands in the committed manifests, or it fails
and names the first file that is wrong. The files come out of the wheels `bullmq` and `django-htmx`, build requirements,
and are never committed. A file that is already in the tree is checked, not overwritten: a damaged one is reported, not
hidden.
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
DASHBOARD = Path("src/toril/dashboard")


class ScriptIntegrityError(Exception):
    """An official script is missing, unexpected or not the one the manifest names."""


class OfficialScriptsHook(BuildHookInterface[Any]):
    """Runs before every wheel, sdist and editable build."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version, build_data
        place_official_scripts(Path(self.root) / OFFICIAL)
        place_htmx(Path(self.root) / DASHBOARD)


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


# --- htmx ------------------------------------------------------------------------------------------------------


def place_htmx(dashboard: Path) -> None:
    """Make the static files of the dashboard hold exactly the files of its manifest."""
    manifest = json.loads((dashboard / "htmx_manifest.json").read_text(encoding="utf-8"))
    source = find_htmx(manifest["package"]["version"])
    for name, entry in manifest["files"].items():
        target = dashboard / "static" / name
        if not target.exists():
            place_htmx_file(target, None if source is None else source / entry["from"], entry["sha256"])
        check_htmx(target, entry["sha256"])


def find_htmx(version: str) -> Path | None:
    """The static files of the installed `django-htmx`; None where it is absent (an unpacked sdist has its own)."""
    try:
        installed = importlib.metadata.distribution("django-htmx")
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed.version != version:
        raise ScriptIntegrityError(
            f"django-htmx {installed.version} is installed, but the manifest was made for django-htmx {version}. "
            f"Build with build isolation, or install django-htmx=={version} first."
        )
    return Path(str(installed.locate_file("django_htmx/static/django_htmx")))


def place_htmx_file(target: Path, source: Path | None, expected: str) -> None:
    if source is None or not source.exists():
        raise ScriptIntegrityError(
            f"{target} is missing. Build with build isolation, so that the django-htmx wheel named in pyproject.toml "
            "is there to copy from."
        )
    check_htmx(source, expected)
    target.write_bytes(source.read_bytes())


def check_htmx(path: Path, expected: str) -> None:
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        raise ScriptIntegrityError(
            f"{path} is not the file of the manifest: its SHA-256 is {actual}, the manifest says {expected}. "
            "Delete the file and build again; if that does not help, the django-htmx wheel itself was altered."
        )
