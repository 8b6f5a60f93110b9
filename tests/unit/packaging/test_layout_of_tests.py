"""Where test files are and how they are named: one name for one file, and no server for unit tests."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[2]
REPEATED_NAMES = {"__init__.py", "__main__.py", "conftest.py"}
BY_STRING = ("usefixtures", "getfixturevalue")
SERVER_CLASSES = {"Server", "ValkeyCluster", "ValkeySentinel"}


def test_no_two_files_have_the_same_name() -> None:
    files = [path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]
    counts = Counter(path.name for path in files if path.name not in REPEATED_NAMES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_fixtures_that_start_servers_are_known() -> None:
    assert {
        "valkey_url",
        "redis7",
        "cluster_url",
        "sentinel",
        "server_url",
        "redis7_tls",
    } <= server_fixtures()
    assert {"start_valkey", "start_redis7"} <= server_fixtures()
    assert "prefix" not in server_fixtures()


def test_unit_tests_need_no_server() -> None:
    forbidden = server_fixtures()
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (TESTS / "unit").rglob("*.py")}
    found = {
        str(path.relative_to(TESTS)): sorted(names)
        for path, tree in files.items()
        if (names := (requested_names(tree) & forbidden) | imports_of_servers(tree))
    }
    assert found == {}, "move these tests to tests/integration"


def server_fixtures() -> set[str]:
    """Names of fixtures in tests/conftest.py that start a server, or that depend on one that does."""
    tree = ast.parse((TESTS / "conftest.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    found = {one.name for one in functions if names_in(one) & SERVER_CLASSES}
    while more := {one.name for one in functions if arguments_of(one) & found} - found:
        found |= more
    return found


def requested_names(tree: ast.AST) -> set[str]:
    """Names of arguments of all functions, and of fixtures that are requested by a string."""
    functions = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    calls = (one for one in ast.walk(tree) if isinstance(one, ast.Call))
    by_string = (one.args for one in calls if ast.unparse(one.func).endswith(BY_STRING))
    strings = {ast.literal_eval(arg) for args in by_string for arg in args if isinstance(arg, ast.Constant)}
    return {name for one in functions for name in arguments_of(one)} | strings


def imports_of_servers(tree: ast.AST) -> set[str]:
    modules = (one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom))
    return {module for module in modules if module.startswith("tests.servers")}


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def names_in(function: ast.FunctionDef) -> set[str]:
    return {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
