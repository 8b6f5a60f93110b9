"""The library of scripts: official ones, delivered by the build and checked on loading, and ours.

Guarantee: no official script runs whose text differs from the committed manifest.

A script of ours can include an official body with a line `--@official NAME scriptName`: at load time the line becomes
`local function NAME(KEYS, ARGV) <official text> end`. So a batch stays official by construction: it loops over the very
body that upstream would run once. `--@own NAME part` includes a part of ours, from `lua/parts/`, as a function that may
be given more than these two.

`remembered` composes a script that runs once for each number it is called under (`lua/parts/remember.lua`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from importlib import resources
from importlib.resources.abc import Traversable

from toril.errors import ScriptsCorrupt

_INCLUDE = re.compile(r"^--@(official|own) (\w+) (\w+)$", re.MULTILINE)


class Script:
    """A Lua text with the digest by which the server knows it."""

    __slots__ = ("name", "sha1", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        # Redis names scripts by SHA-1; this is an address, not a protection.
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name}, {self.sha1[:8]})"


def _room(folder: str) -> Traversable:
    return resources.files("toril.commands").joinpath(folder)


@functools.cache
def manifest() -> dict[str, str]:
    """File name → SHA-256 of every official script, as committed."""
    listing: dict[str, str] = json.loads(_manifest_text())["scripts"]
    return listing


@functools.cache
def _manifest_text() -> str:
    return _room("official").joinpath("manifest.json").read_text(encoding="utf-8")


def upstream() -> dict[str, dict[str, str]]:
    """Where the official scripts come from (`package`) and what they are held against (`reference`)."""
    origin: dict[str, dict[str, str]] = json.loads(_manifest_text())
    return {"package": origin["package"], "reference": origin["reference"]}


@functools.cache
def _file_of(name: str) -> str:
    for file in manifest():
        if file.rpartition("-")[0] == name:
            return file
    raise KeyError(f"no official script is called {name}")


@functools.cache
def official(name: str) -> Script:
    """An official script by upstream's name, such as `moveToActive`; its bytes are checked."""
    file = _file_of(name)
    return Script(name, _read_checked(file))


def _read_checked(file: str) -> str:
    try:
        data = _room("official").joinpath(file).read_bytes()
    except OSError as error:
        raise ScriptsCorrupt(f"{file} is missing") from error
    found = hashlib.sha256(data).hexdigest()
    if found != manifest()[file]:
        raise ScriptsCorrupt(f"{file} has SHA-256 {found}, the manifest says {manifest()[file]}")
    return data.decode()


@functools.cache
def own(name: str) -> Script:
    """A script of ours from `lua/`, with the bodies it includes."""
    return Script(f"toril.{name}", _composed("lua", name))


def _composed(folder: str, name: str) -> str:
    text = _room(folder).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(_embed, text)


def _embed(line: re.Match[str]) -> str:
    origin, function, name = line.groups()
    if origin == "official":
        return f"local function {function}(KEYS, ARGV)\n{official(name).text}\nend"
    return _embed_own(function, name)


def _embed_own(function: str, part: str) -> str:
    return f"local function {function}(KEYS, ARGV, ...)\n{_composed('lua/parts', part)}\nend"


@functools.cache
def remembered(script: Script) -> Script:
    """The same script, which answers a repeated call with the reply to the first one."""
    remember = _embed_own("remember", "remember")
    body = f"local function body(KEYS, ARGV)\n{script.text}\nend"
    return Script(script.name, f"{remember}\n{body}\nreturn remember(KEYS, ARGV, body)")


def own_names() -> list[str]:
    """The scripts of ours, by name."""
    return sorted(
        file.name.removesuffix(".lua") for file in _room("lua").iterdir() if file.name.endswith(".lua")
    )


def check_all() -> dict[str, str]:
    """File → SHA-256 as found; raises `ScriptsCorrupt` at the first that differs from the manifest."""
    return {file: hashlib.sha256(_read_checked(file).encode()).hexdigest() for file in manifest()}
