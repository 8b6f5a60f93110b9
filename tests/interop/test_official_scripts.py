"""The scripts we run are those of the reference, npm `bullmq@5.62.0`, but for the differences the manifest names."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
NODE = REPOSITORY / "tests/interop/node"
OFFICIAL = REPOSITORY / "src/toril/commands/official"

# The expanded text of each script, by the name of its file; the package's own .lua files still hold includes.
PRINTS_THE_REFERENCE = """
const { readdirSync } = require('fs');
const folder = './node_modules/bullmq/dist/cjs/scripts/';
const found = { version: require('./node_modules/bullmq/package.json').version, scripts: {} };
for (const file of readdirSync(folder)) {
  if (!/-\\d+\\.js$/.test(file)) continue;
  for (const script of Object.values(require(folder + file))) {
    if (script.content) found.scripts[`${script.name}-${script.keys}.lua`] = script.content;
  }
}
process.stdout.write(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OFFICIAL / "manifest.json").read_text())
    return found


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    command = ["node", "-e", PRINTS_THE_REFERENCE]
    done = subprocess.run(command, cwd=NODE, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def digests(reference: dict[str, Any]) -> dict[str, str]:
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in reference["scripts"].items()}


def test_the_manifest_names_the_installed_reference(
    manifest: dict[str, Any], reference: dict[str, Any]
) -> None:
    assert manifest["reference"]["version"] == reference["version"] == "5.62.0"
    assert manifest["reference"]["commit"] == "6a31e0aeab1311d7d089811ede7e11a98b6dd408"


def test_forty_seven_scripts_are_identical(manifest: dict[str, Any], digests: dict[str, str]) -> None:
    identical = {name for name, digest in manifest["scripts"].items() if digests.get(name) == digest}
    assert len(digests) == 49
    assert len(identical) == 47


def test_the_two_known_differences_are_exactly_those_the_manifest_names(
    manifest: dict[str, Any], digests: dict[str, str]
) -> None:
    ours = manifest["scripts"]
    different = {name: digest for name, digest in digests.items() if ours[name] != digest}
    named = {name: entry["reference_sha256"] for name, entry in manifest["differences"].items()}
    assert different == named
    assert named.keys() == {"addJobScheduler-11.lua", "extendLocks-1.lua"}


def test_the_one_extra_script_is_named(manifest: dict[str, Any], digests: dict[str, str]) -> None:
    assert manifest["scripts"].keys() - digests.keys() == manifest["additions"].keys()
    assert list(manifest["additions"]) == ["removeDeduplicationKey-1.lua"]


def test_every_script_on_disk_has_the_digest_of_the_manifest(manifest: dict[str, Any]) -> None:
    on_disk = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in OFFICIAL.glob("*.lua")}
    assert on_disk == manifest["scripts"]
