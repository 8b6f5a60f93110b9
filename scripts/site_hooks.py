"""Hooks of the documentation site: generated reference pages, and links to files outside of `docs/`.

Guarantee: the pages of the reference are made from the code each time the site is built, so they name what exists.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))
_LINK: Final = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)([^)]*\))")
# Classes whose fields are options, with their title.
_OPTIONS: Final = {
    "toril.protocol.options:JobOptions": "Options of a job",
    "toril.protocol.worker_options:WorkerOptions": "Options of a worker",
    "toril.spark.pipeline.options:PipelineOptions": "Options of a pipeline",
    "toril.spark.worker.options:SparkWorkerOptions": "Options of a SparkWorker",
    "toril.dashboard.options:DashboardOptions": "Options of the dashboard",
    "toril.transport.policy:ConnectionPolicy": "Options of connections",
}
_PYTHON: Final = """\
This page has every public name with its signature, made from the code. Names that begin with an underscore are private.
`toril.sync` has the same classes with blocking methods."""
_COMMANDS: Final = """\
This page has every command of `toril` with its arguments and options, as `--help` prints them. [The command
line](../cli.md) explains how to use them."""
_FIELDS: Final = """\
This page has the fields of the option classes with their defaults, made from the code. Durations are seconds or
`timedelta`s."""
_MODULES: Final = ("toril", "toril.errors", "toril.server", "toril.spark", "toril.lake", "toril.testing")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    pages = {"python": python_reference, "commands": command_reference, "options": option_reference}
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Links to files outside of `docs/` lead to the repository."""
    here = (Path(config.docs_dir) / page.file.src_uri).parent

    def outside(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if not target.is_relative_to(ROOT) or target.is_relative_to(Path(config.docs_dir)):
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{found[1]}{config.extra['repository']}/{kind}/main/{target.relative_to(ROOT)}{found[3]}"

    return _LINK.sub(outside, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Names the dialog of the search, which the theme leaves without a name."""
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )


# --- Python ----------------------------------------------------------------------------------------------------------


def python_reference() -> str:
    """Returns the page of all public names, with signatures and docstrings."""
    parts = ["# Python reference", _PYTHON]
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}", _text(module.__doc__)]
        for name in sorted(module.__all__, key=str.lower):
            if name != "sync":  # a package with the same names
                parts += _described(module_name, name, getattr(module, name))
    return "\n\n".join(part for part in parts if part)


def _described(module: str, name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        return
    yield f"### `{module}.{name}`"
    if inspect.isclass(value):
        yield _code(f"class {name}{_signature(value)}")
        yield _text(value.__doc__)
        yield from _members(value)
    elif callable(value):
        yield _code(f"{name}{_signature(value)}")
        yield _text(value.__doc__)
    else:
        yield _code(f"{name} = {value!r}"[:200])


def _members(kind: type) -> Iterator[str]:
    rows = []
    for name, value in inspect.getmembers(kind):
        if name.startswith("_") or not _is_ours(value):
            continue
        doc = _first_line(inspect.getdoc(value))
        if doc:
            call = _signature(value) if callable(value) else ""
            rows.append((f"`{name}{call}`", doc))
    if rows:
        yield _table(("member", "meaning"), rows)


def _is_ours(value: Any) -> bool:
    function = value.fget if isinstance(value, property) else value
    return str(getattr(function, "__module__", "")).startswith("toril")


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"\((?:self|cls)(?:, )?", "(", text, count=1).replace("'", "")


# --- the command line --------------------------------------------------------------------------------------------


def command_reference() -> str:
    """Returns the page of all commands with their options."""
    import typer.main

    from toril.cli._app import app

    parts = ["# Commands", _COMMANDS]
    parts += _commands("toril", typer.main.get_command(app))
    return "\n\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if path != "toril":
        yield f"{'##' if path.count(' ') == 1 else '###'} `{path}`"
        yield _text(command.help)
        rows = [_option_row(one) for one in command.params if not getattr(one, "hidden", False)]
        if rows and not children:
            yield _table(("option", "default", "meaning"), rows)
    for name, child in children.items():
        yield from _commands(f"{path} {name}", child)


def _option_row(option: Any) -> tuple[str, str, str]:
    names = ", ".join(option.opts) if option.param_type_name == "option" else option.name.upper()
    default = option.default
    plain = "" if default is None or callable(default) or default is False or default == [] else str(default)
    return f"`{names}`", f"`{plain}`" if plain else "", getattr(option, "help", None) or ""


# --- options -----------------------------------------------------------------------------------------------------


def option_reference() -> str:
    """Returns the page of all options, with the comments beside their fields."""
    parts = ["# Options", _FIELDS]
    for place, title in _OPTIONS.items():
        module, _, name = place.partition(":")
        kind = getattr(importlib.import_module(module), name)
        comments = _comments(inspect.getsource(kind))
        rows = [
            (f"`{one.name}`", f"`{_default(one)}`" if _default(one) else "", comments.get(one.name, ""))
            for one in dataclasses.fields(kind)
            if not one.name.startswith("_")
        ]
        parts += [
            f"## {title}",
            _text(kind.__doc__),
            _table((f"field of `{name}`", "default", "meaning"), rows),
        ]
    return "\n\n".join(part for part in parts if part)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return "" if field.default is None else str(field.default)
    return ""


def _comments(source: str) -> dict[str, str]:
    """Returns the comments of fields: those at the end of a line, and those in the lines above."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in source.splitlines():
        if comment := re.match(r"\s+# (.*)", line):
            above.append(comment[1])
            continue
        if field := re.match(r"    (\w+): ", line):
            beside = re.search(r"  # (.*)$", line)
            texts = [*above, *([beside[1]] if beside and not beside[1].startswith("noqa") else [])]
            found[field[1]] = " ".join(texts)
        above = []
    return found


# --- Markdown ----------------------------------------------------------------------------------------------------


def _text(docstring: str | None) -> str:
    """Returns a docstring as Markdown: indented blocks stay code, and nothing of it is HTML."""
    return inspect.cleandoc(docstring or "").replace("\f", "").replace("<", "&lt;")


def _first_line(docstring: str | None) -> str:
    first = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(first.split())


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return (
        " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
        if "`" not in text
        else _code_cell(text)
    )


def _code_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
