#!/usr/bin/env python3
"""Fails for imports of `_modules` from outside their package, in src, benchmarks and examples.

A module or package whose name begins with an underscore is imported only inside the package that contains it. Relative
imports, imports inside functions, `from package import _module` and names of modules in strings count as well.
Tests may import private modules: they test them.

Usage: private_imports.py [FOLDER ...] (default: src, benchmarks and examples beside this script's folder)
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FOLDERS = ("src", "benchmarks", "examples")
DOTTED_NAME = re.compile(r"[a-z]\w*(\.\w+)+")


class PrivateImport(NamedTuple):
    path: Path
    line: int
    module: str


def private_imports(folder: Path) -> Iterator[PrivateImport]:
    """Yields the imports of private modules from outside their package, by file and line."""
    root = folder.parent if (folder / "__init__.py").exists() else folder
    for path in sorted(folder.rglob("*.py")):
        package = path.relative_to(root).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for module in imported(node, package):
                if is_foreign(module, package):
                    yield PrivateImport(path, getattr(node, "lineno", 0), ".".join(module))
                    break


def is_foreign(module: tuple[str, ...], package: tuple[str, ...]) -> bool:
    """Returns whether a part of the module's name is private to a package that `package` is not in."""
    return any(
        name.startswith("_") and not name.startswith("__") and package[:at] != module[:at]
        for at, name in enumerate(module)
    )


def imported(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the names of the modules that a statement imports, or that a string names, split at their dots."""
    if isinstance(node, ast.Import):
        yield from (tuple(alias.name.split(".")) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        module = base + (tuple(node.module.split(".")) if node.module else ())
        yield from ((*module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED_NAME.fullmatch(node.value):
        names = tuple(node.value.split("."))
        if names[0] == "toril":
            yield names


def main(arguments: list[str]) -> int:
    folders = [Path(one) for one in arguments] or [ROOT / name for name in DEFAULT_FOLDERS]
    found = [one for folder in folders for one in private_imports(folder)]
    for path, line, module in found:
        remedy = "it is private to its package; import a public module, or remove the underscore"
        print(f"{path}:{line}: {module}: {remedy}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
