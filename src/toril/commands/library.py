"""The library of scripts: the official ones, which the build delivers, and toril's own.

Guarantee: no official script runs whose text differs from the committed manifest, and no own script whose header
differs from its declaration in Python (`commands/signature.py`).

An own script includes an official one with a line `--@official NAME scriptName`: at load time the line becomes
`local function NAME(KEYS, ARGV) <official text> end`. So a batch runs the same text that upstream runs for one job.
`--@own NAME part` includes a file of `lua/parts/` as a function that takes further arguments behind these two.

`remembered` composes a script that runs once for each number it is called under (`lua/parts/remember.lua`), `grouped`
one that takes jobs within the limits of their groups (`lua/parts/settle_groups.lua`), `leased` one that takes jobs once
for each lease (`lua/parts/lease.lua`), and `forwarding` one that adds results to another queue
(`lua/parts/settle_forward.lua`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from importlib import resources
from importlib.resources.abc import Traversable

from toril.commands.signature import Signature, bind, check_header
from toril.errors import ScriptsCorrupt

_INCLUDE = re.compile(r"^--@(official|own) (\w+) (\w+)$", re.MULTILINE)

# What Python declares of the files in `lua/`, by name without suffix.
DECLARED: dict[str, Signature] = {}


class Script:
    """A Lua text with its SHA-1, by which the server finds it."""

    __slots__ = ("name", "sha1", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        # Redis addresses scripts by SHA-1; it is not used for security.
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name}, {self.sha1[:8]})"


def _folder(folder: str) -> Traversable:
    return resources.files("toril.commands").joinpath(folder)


@functools.cache
def manifest() -> dict[str, str]:
    """File name → SHA-256 of every official script, as committed."""
    listing: dict[str, str] = json.loads(_manifest_text())["scripts"]
    return listing


@functools.cache
def _manifest_text() -> str:
    return _folder("official").joinpath("manifest.json").read_text(encoding="utf-8")


def upstream() -> dict[str, dict[str, str]]:
    """The package that the official scripts come from, and the version that they are compared with (`reference`)."""
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
        data = _folder("official").joinpath(file).read_bytes()
    except OSError as error:
        raise ScriptsCorrupt(f"{file} is missing") from error
    found = hashlib.sha256(data).hexdigest()
    if found != manifest()[file]:
        raise ScriptsCorrupt(f"{file} has SHA-256 {found}, the manifest has {manifest()[file]}")
    return data.decode()


@functools.cache
def own(name: str) -> Script:
    """An own script from `lua/`, with the scripts and parts that it includes; its header is checked."""
    text = _read_own(name)
    signature = Signature.of_header(text)
    if name in DECLARED:
        check_header(f"lua/{name}.lua", signature, DECLARED[name])
    return Script(f"toril.{name}", _compose(name, text, signature))


def _read_own(name: str) -> str:
    return _folder("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _compose(name: str, text: str, signature: Signature) -> str:
    bound = bind(f"lua/{name}.lua", text, signature)
    return _INCLUDE.sub(lambda line: _include(line, signature), bound)


def _include(line: re.Match[str], signature: Signature) -> str:
    origin, function, name = line.groups()
    if origin == "official":
        return f"local function {function}(KEYS, ARGV)\n{official(name).text}\nend"
    return _include_part(function, f"parts/{name}", signature)


def _include_part(function: str, part: str, signature: Signature) -> str:
    return f"local function {function}(KEYS, ARGV, ...)\n{_compose(part, _read_own(part), signature)}\nend"


@functools.cache
def remembered(script: Script) -> Script:
    """The same script, which replies to a repeated call with the reply to the first one."""
    part = "parts/remember"
    check_header(f"lua/{part}.lua", Signature.of_header(_read_own(part)), DECLARED[part])
    remember = _include_part("remember", part, Signature())
    inner = f"local function script(KEYS, ARGV)\n{script.text}\nend"
    return Script(script.name, f"{remember}\n{inner}\nreturn remember(KEYS, ARGV, script)")


@functools.cache
def grouped(name: str) -> Script:
    """An own script that takes jobs, which knows the limits of groups (`lua/parts/settle_groups.lua`)."""
    return _wrapped("settle_groups", own(name), "grouped", DECLARED[name])


@functools.cache
def leased(name: str) -> Script:
    """An own script that takes jobs, which does so once for each lease (`lua/parts/lease.lua`)."""
    part = "parts/lease"
    check_header(f"lua/{part}.lua", Signature.of_header(_read_own(part)), DECLARED[part])
    return _wrapped("lease", grouped(name), "leased", DECLARED[name])


@functools.cache
def forwarding(script: Script, name: str) -> Script:
    """`script`, which is `settle` or made of it, followed by the own script `name`, which adds results to another queue
    (`lua/parts/settle_forward.lua`)."""
    part = "parts/settle_forward"
    check_header(f"lua/{part}.lua", Signature.of_header(_read_own(part)), DECLARED[part])
    return _wrapped("settle_forward", script, "forwarding", DECLARED["settle"], own(name))


def _wrapped(part: str, script: Script, title: str, signature: Signature, *further: Script) -> Script:
    """A script that runs a part, which gets the script, and further ones, as functions."""
    outer = _include_part("outer", f"parts/{part}", signature)
    scripts = [
        f"local function script{at}(KEYS, ARGV)\n{one.text}\nend" for at, one in enumerate((script, *further))
    ]
    names = ", ".join(f"script{at}" for at in range(len(scripts)))
    text = "\n".join((outer, *scripts, f"return outer(KEYS, ARGV, {names})"))
    return Script(f"{script.name}.{title}", text)


def own_names() -> list[str]:
    """The names of the own scripts."""
    return sorted(
        file.name.removesuffix(".lua") for file in _folder("lua").iterdir() if file.name.endswith(".lua")
    )


def check_all() -> dict[str, str]:
    """File → SHA-256 as found; raises `ScriptsCorrupt` at the first that differs from the manifest."""
    return {file: hashlib.sha256(_read_checked(file).encode()).hexdigest() for file in manifest()}
