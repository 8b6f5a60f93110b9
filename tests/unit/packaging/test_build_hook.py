"""The build takes BullMQ's scripts from its wheel, and refuses any that the manifest does not vouch for."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
OFFICIAL = Path("src/toril/commands/official")
HTMX = ("htmx-4.min.js", "hx-sse-4.min.js")
PARTS_OF_A_BUILD = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE", "src/pyspark_toril")


@pytest.fixture
def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", REPOSITORY / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A copy of the folder with the official scripts and their manifest."""
    return Path(shutil.copytree(REPOSITORY / OFFICIAL, tmp_path / "official"))


def test_the_scripts_in_the_tree_are_the_official_ones(hook: Any, official: Path) -> None:
    hook.place_official_scripts(official)
    expected = json.loads((official / "manifest.json").read_text())["scripts"]
    assert {path.name for path in official.glob("*.lua")} == expected.keys()
    assert len(expected) == 50


def test_one_corrupted_byte_fails_the_build_and_names_the_file(hook: Any, official: Path) -> None:
    flip_one_byte(official / "moveToFinished-14.lua")
    with pytest.raises(
        hook.ScriptIntegrityError, match=r"moveToFinished-14\.lua is not the official script.*Delete"
    ):
        hook.place_official_scripts(official)


def test_a_script_nobody_vouches_for_fails_the_build(hook: Any, official: Path) -> None:
    (official / "surprise-1.lua").write_text("return 1")
    with pytest.raises(hook.ScriptIntegrityError, match=r"surprise-1\.lua is not in the manifest"):
        hook.place_official_scripts(official)


def test_a_missing_script_is_copied_from_the_wheel(
    hook: Any, official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Path(shutil.copytree(official, tmp_path / "wheel"))
    monkeypatch.setattr(hook, "find_wheel_scripts", lambda _version: wheel)
    (official / "pause-7.lua").unlink()
    hook.place_official_scripts(official)
    assert (official / "pause-7.lua").read_bytes() == (wheel / "pause-7.lua").read_bytes()


def test_a_corrupted_wheel_fails_the_build_and_leaves_the_tree_alone(
    hook: Any, official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Path(shutil.copytree(official, tmp_path / "wheel"))
    flip_one_byte(wheel / "pause-7.lua")
    monkeypatch.setattr(hook, "find_wheel_scripts", lambda _version: wheel)
    (official / "pause-7.lua").unlink()
    with pytest.raises(hook.ScriptIntegrityError, match=r"wheel/pause-7\.lua is not the official script"):
        hook.place_official_scripts(official)
    assert not (official / "pause-7.lua").exists()


def test_without_wheel_and_scripts_the_message_says_what_to_do(
    hook: Any, official: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "find_wheel_scripts", lambda _version: None)
    (official / "pause-7.lua").unlink()
    with pytest.raises(hook.ScriptIntegrityError, match=r"pause-7\.lua is missing.*build isolation"):
        hook.place_official_scripts(official)


@pytest.fixture
def dashboard(tmp_path: Path) -> Path:
    """A copy of the dashboard's manifest and static files."""
    ignored = shutil.ignore_patterns("__pycache__", "pages", "templates", "*.py")
    return Path(shutil.copytree(REPOSITORY / "src/toril/dashboard", tmp_path / "dashboard", ignore=ignored))


@pytest.mark.parametrize("file", HTMX)
def test_a_missing_file_of_htmx_is_copied_and_a_corrupted_one_is_refused(
    hook: Any, dashboard: Path, file: str
) -> None:
    placed = dashboard / "static" / file
    content = placed.read_bytes()
    placed.unlink()
    hook.place_htmx(dashboard)
    assert placed.read_bytes() == content
    flip_one_byte(placed)
    with pytest.raises(hook.ScriptIntegrityError, match=rf"{file} is not the file of the manifest.*Delete"):
        hook.place_htmx(dashboard)


def test_without_the_wheel_of_htmx_the_message_says_what_to_do(
    hook: Any, dashboard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "find_htmx", lambda _version: None)
    hook.place_htmx(dashboard)  # an unpacked sdist has its own
    (dashboard / "static" / HTMX[0]).unlink()
    with pytest.raises(hook.ScriptIntegrityError, match=r"is missing.*build isolation"):
        hook.place_htmx(dashboard)


@pytest.mark.timeout(180)
def test_wheel_and_sdist_built_from_a_clean_tree_carry_every_script(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    build(tree)
    expected = json.loads((tree / OFFICIAL / "manifest.json").read_text())["scripts"]
    wheel = zipfile.ZipFile(next((tree / "dist").glob("*.whl"))).namelist()
    with tarfile.open(next((tree / "dist").glob("*.tar.gz"))) as sdist:
        source = sdist.getnames()
    assert {
        Path(name).name for name in wheel if name.startswith("toril/commands/official/")
    } >= expected.keys()
    assert {Path(name).name for name in source if f"{OFFICIAL}/" in name} >= expected.keys()
    assert any(name.endswith("licenses/NOTICE") for name in wheel)
    for file in HTMX:
        assert f"toril/dashboard/static/{file}" in wheel
        assert any(name.endswith(f"src/toril/dashboard/static/{file}") for name in source)


@pytest.mark.timeout(180)
def test_a_real_build_with_a_corrupted_script_fails_clearly(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    shutil.copy(REPOSITORY / OFFICIAL / "drain-5.lua", tree / OFFICIAL)
    flip_one_byte(tree / OFFICIAL / "drain-5.lua")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        build(tree, "--wheel")
    assert "drain-5.lua is not the official script" in failure.value.stdout + failure.value.stderr


def copy_of_the_tree(folder: Path) -> Path:
    """What a build reads, as a fresh clone has it: without the official scripts."""
    tree = folder / "tree"
    for part in PARTS_OF_A_BUILD:
        source = REPOSITORY / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (tree / part).parent.mkdir(parents=True, exist_ok=True)
        copy(source, tree / part)
    no_scripts = shutil.ignore_patterns("__pycache__", "*-[0-9].lua", "*-[0-9][0-9].lua", "*.min.js")
    shutil.copytree(REPOSITORY / "src/toril", tree / "src/toril", ignore=no_scripts)
    return tree


def build(tree: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", *options, str(tree)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def flip_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
