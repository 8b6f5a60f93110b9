"""The header of a script and its declaration in Python name the same keys and arguments."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import toril.commands
from toril.commands import library
from toril.commands.library import DECLARED, own, own_names, remembered
from toril.commands.own_script import OwnScript
from toril.commands.signature import Signature
from toril.errors import ScriptsCorrupt
from toril.protocol.keys import QueueKeys

LUA = Path(library.__file__).parent / "lua"
HEADER = re.compile(r"^--@(keys|each_keys|args|each|last_keys|last_args) (.+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def declared() -> None:
    for module in pkgutil.iter_modules(toril.commands.__path__):
        importlib.import_module(f"toril.commands.{module.name}")


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copies of the Lua files that a test may change."""
    for folder in (LUA, LUA / "parts"):
        (tmp_path / folder.relative_to(LUA.parent)).mkdir()
        for file in folder.glob("*.lua"):
            (tmp_path / file.relative_to(LUA.parent)).write_text(file.read_text())
    real = library._folder
    monkeypatch.setattr(library, "_folder", lambda name: tmp_path / name if name == "lua" else real(name))
    own.cache_clear()
    remembered.cache_clear()
    yield tmp_path / "lua"
    own.cache_clear()
    remembered.cache_clear()


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_every_own_script_is_declared_and_its_header_agrees() -> None:
    assert {name for name in DECLARED if "/" not in name} == set(own_names())
    for name in own_names():
        assert own(name).text
        assert remembered(own(name)).text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("--@keys wait active", "--@keys active wait", "--@keys: number 1 is active, Python has wait"),
        (" worker rate_limit", " rate_limit", "--@args: number 6 is rate_limit, Python has worker"),
        (" rate_limit\n", " rate_limit extra\n", "--@args: number 8 is extra, Python has none"),
        (" options fields\n", " options\n", "--@each: number 6 is missing, Python has fields"),
    ],
)
def test_a_header_that_differs_is_refused_with_script_and_name(
    scripts: Path, old: str, new: str, complaint: str
) -> None:
    change(scripts / "settle.lua", old, new)
    with pytest.raises(ScriptsCorrupt, match=re.escape(f"lua/settle.lua: {complaint}")):
        own("settle")


def test_a_part_with_a_name_that_its_script_lacks_is_refused(scripts: Path) -> None:
    change(scripts / "parts/settle_one.lua", "--@keys wait", "--@keys ledger wait")
    with pytest.raises(ScriptsCorrupt, match=r"lua/parts/settle_one\.lua: --@keys: the script has no ledger"):
        own("settle")


def test_the_header_of_remembered_calls_is_checked_too(scripts: Path) -> None:
    change(scripts / "parts/remember.lua", "--@last_args slot number", "--@last_args number slot")
    with pytest.raises(ScriptsCorrupt, match=r"lua/parts/remember\.lua: --@last_args: number 1 is number"):
        remembered(own("pause"))


def test_names_become_locals_at_the_places_of_the_script() -> None:
    text = own("settle").text
    assert "local base, now_ms, token, lock_ms, worker = ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6]" in text
    assert "local FIRST_ITEM, JOB_ID, TOKEN, VALUE = 8, 0, 2, 3" in text
    assert not HEADER.search(text)


def test_scripts_and_parts_name_their_keys_and_arguments_and_use_no_numbers() -> None:
    numbered = re.compile(r"\b(KEYS|ARGV)\[\d")
    camel = re.compile(r"\blocal (?:function )?[a-z]+[A-Z]")
    for file in LUA.rglob("*.lua"):
        text = file.read_text()
        assert not numbered.search(text), file.name
        assert not camel.search(text), file.name
        if file.parent == LUA:
            assert HEADER.search(text), file.name


def test_keys_and_arguments_are_sent_in_the_order_of_their_names() -> None:
    pause = OwnScript("pause", keys=" ".join(DECLARED["pause"].keys), args=" ".join(DECLARED["pause"].args))
    keys = QueueKeys("emails")
    given = pause.keys(keys, source=keys.wait, target=keys.paused)
    assert given[:3] == (keys.wait, keys.paused, keys.meta)
    assert pause.args(action="paused") == ["paused"]


def test_an_unknown_or_missing_name_is_a_type_error() -> None:
    script = OwnScript("pause", keys=" ".join(DECLARED["pause"].keys), args="action")
    with pytest.raises(TypeError, match="pause has no key goal"):
        script.keys(QueueKeys("emails"), goal="x")
    with pytest.raises(TypeError, match="pause takes the arguments action"):
        script.args()


def test_lines_of_one_kind_continue_each_other() -> None:
    assert Signature.of_header("--@keys a b\n--@keys c\n--@args d\n") == Signature(
        keys=("a", "b", "c"), args=("d",)
    )
