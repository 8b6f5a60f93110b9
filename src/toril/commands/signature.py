"""The names of a script's keys and arguments, declared in Lua and in Python.

A file in `lua/` begins with header lines that name its keys and arguments in the order of a call:

    --@keys wait active …          keys
    --@args base now_ms …          arguments
    --@each job_id kind …          arguments that are repeated for each item, behind the others
    --@each_keys wait paused …     keys that are repeated, behind the others

`bind` turns such a line into Lua locals when the script is composed: a key or an argument becomes a local of its name.
For the repeated arguments there are `FIRST_ITEM`, `ITEM_SIZE` and the offset of each within an item, in upper case:
`ARGV[at + JOB_ID]`; for the repeated keys `FIRST_KEY`, `KEY_SIZE` and the offsets. A part names those of the script's
keys and arguments that it uses, in any order. `--@last_keys` and `--@last_args` remove theirs from the end
(`parts/remember.lua`).

Guarantee: a header that differs from Python's declaration, or a part that uses a name which its script does not have,
is refused with the file and the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from toril.errors import ScriptsCorrupt

_HEADER: Final = re.compile(r"^--@(keys|each_keys|args|each|last_keys|last_args) ([\w ]+)$", re.MULTILINE)
_COMMENTS_AND_STRINGS: Final = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL
)

# For repeated names: the constants for the first place and the size of an item, and the kind of names before them.
_REPEATED: Final = {
    "each": ("FIRST_ITEM", "ITEM_SIZE", "args"),
    "each_keys": ("FIRST_KEY", "KEY_SIZE", "keys"),
}
_TABLE: Final = {"keys": "KEYS", "args": "ARGV", "last_keys": "KEYS", "last_args": "ARGV"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The names of keys and arguments in the order of a call."""

    keys: tuple[str, ...] = ()
    each_keys: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    last_keys: tuple[str, ...] = ()
    last_args: tuple[str, ...] = ()

    @classmethod
    def of_header(cls, text: str) -> Signature:
        """Returns what the header lines of a file name; lines of one kind continue each other."""
        found: dict[str, tuple[str, ...]] = {}
        for kind, names in _HEADER.findall(text):
            found[kind] = (*found.get(kind, ()), *names.split())
        return cls(**found)

    def names(self, kind: str) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self, kind)
        return found


def check_header(file: str, found: Signature, declared: Signature) -> None:
    """Raises `ScriptsCorrupt` with the first name that differs."""
    for kind in fields(Signature):
        in_lua, in_python = found.names(kind.name), declared.names(kind.name)
        if in_lua != in_python:
            raise ScriptsCorrupt(f"{file}: --@{kind.name}: {_first_difference(in_lua, in_python)}")


def _first_difference(in_lua: tuple[str, ...], in_python: tuple[str, ...]) -> str:
    for at in range(max(len(in_lua), len(in_python))):
        one, other = in_lua[at : at + 1], in_python[at : at + 1]
        if one != other:
            return f"number {at + 1} is {one[0] if one else 'missing'}, Python has {other[0] if other else 'none'}"
    return "no difference"


def bind(file: str, text: str, script: Signature) -> str:
    """Returns the text with its header lines turned into locals, by the places that the names have in `script`."""
    used = set(re.findall(r"\w+", _COMMENTS_AND_STRINGS.sub("", text)))
    return _HEADER.sub(lambda line: _locals(file, line[1], line[2].split(), script, used), text)


def _locals(file: str, kind: str, names: list[str], script: Signature, used: set[str]) -> str:
    for name in names:
        if not kind.startswith("last_") and name not in script.names(kind):
            raise ScriptsCorrupt(f"{file}: --@{kind}: the script has no {name}")
    if kind in _REPEATED:
        values = dict(_constants(kind, script))
    elif kind.startswith("last_"):
        values = dict.fromkeys(reversed(names), f"table.remove({_TABLE[kind]})")
        return f"local {', '.join(values)} = {', '.join(values.values())}"
    else:
        values = {name: f"{_TABLE[kind]}[{script.names(kind).index(name) + 1}]" for name in names}
    values = {name: value for name, value in values.items() if name in used}
    return f"local {', '.join(values)} = {', '.join(values.values())}" if values else ""


def _constants(kind: str, script: Signature) -> Iterator[tuple[str, str]]:
    first, size, before = _REPEATED[kind]
    names = script.names(kind)
    yield first, str(len(script.names(before)) + 1)
    yield size, str(len(names))
    for offset, name in enumerate(names):
        yield name.upper(), str(offset)
