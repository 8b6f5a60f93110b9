"""The library of scripts: what is loaded is what the manifest vouches for."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from toril.commands import library
from toril.commands.library import Script, check_all, manifest, official, own, own_names, remembered, upstream
from toril.errors import ScriptsCorrupt


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package's scripts in a folder of this test; caches are empty before and after."""
    package = Path(library.__file__).parent
    for folder in ("official", "lua"):
        shutil.copytree(package / folder, tmp_path / folder)
    monkeypatch.setattr(library, "_folder", lambda folder: tmp_path / folder)
    cached = (official, own, remembered, manifest, library._manifest_text, library._file_of)
    for function in cached:
        monkeypatch.setattr(function, "cache_clear", function.cache_clear, raising=False)
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


def test_a_script_is_known_by_the_digest_redis_computes() -> None:
    assert Script("one", "return 1").sha1 == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    assert repr(Script("one", "return 1")) == "Script(one, e0e1f9fa)"


def test_every_official_script_is_as_the_manifest_says() -> None:
    found = check_all()
    assert found == manifest()
    assert len(found) == 50


def test_the_origin_of_the_scripts_is_printed() -> None:
    assert upstream()["package"]["version"] == "2.16.2"
    assert upstream()["reference"]["version"] == "5.62.0"


@pytest.mark.parametrize("file", ["moveToFinished-14.lua", "pause-7.lua"])
def test_one_corrupted_byte_is_refused_and_the_file_named(copied: Path, file: str) -> None:
    path = copied / "official" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ScriptsCorrupt, match=rf"{file} has SHA-256 .*the manifest has .*reinstall"):
        official(file.rpartition("-")[0])
    with pytest.raises(ScriptsCorrupt, match=file):
        check_all()


def test_a_corrupted_body_spoils_no_batch_that_includes_it_silently(copied: Path) -> None:
    with (copied / "official/moveToActive-11.lua").open("a") as file:
        file.write("-- a comment is a change, too\n")
    with pytest.raises(ScriptsCorrupt, match=r"moveToActive-11\.lua"):
        own("settle")


def test_a_missing_script_is_named(copied: Path) -> None:
    (copied / "official/drain-5.lua").unlink()
    with pytest.raises(ScriptsCorrupt, match=r"drain-5\.lua is missing"):
        official("drain")


def test_an_unknown_name_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError, match="no official script is called moveToMars"):
        official("moveToMars")


def test_an_include_becomes_a_function_around_the_official_text() -> None:
    text = own("settle").text
    assert "--@official" not in text
    assert f"local function move_to_finished(KEYS, ARGV)\n{official('moveToFinished').text}\nend" in text


def test_a_batch_says_nothing_of_its_own_when_included_twice(copied: Path) -> None:
    (copied / "lua/twice.lua").write_text("--@official one pause\n--@official other pause\nreturn 1\n")
    assert own("twice").text.count(official("pause").text) == 2


def test_scripts_of_ours_are_found_by_name_and_load() -> None:
    names = own_names()
    assert {"add_jobs", "extend_locks", "settle", "sweep_begin", "sweep_step"} <= set(names)
    for name in names:
        script = own(name)
        assert script.name == f"toril.{name}"
        assert script.sha1 == hashlib.sha1(script.text.encode()).hexdigest()


def test_no_official_text_is_in_our_own_files() -> None:
    for name in own_names():
        ours = (Path(library.__file__).parent / "lua" / f"{name}.lua").read_text()
        assert "rcall" not in ours  # Upstream's word for redis.call, in every script of theirs.
