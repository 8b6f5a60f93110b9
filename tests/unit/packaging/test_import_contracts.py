"""The plan of the packages is enforced: upward imports, unknown packages and nameless files fail the lint."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toril.protocol import classify

REPOSITORY = Path(__file__).parents[3]

MODULES_WITH_IO = [
    ("protocol/chatty.py", "import subprocess"),
    ("protocol/chatty.py", "import socket"),
    ("commands/chatty.py", "import socket"),
    ("commands/chatty.py", "def late():\n    from ssl import SSLContext"),
    ("commands/chatty.py", "from asyncio import open_connection"),
    ("protocol/chatty.py", "import http.client"),
    ("protocol/chatty.py", "from urllib.request import urlopen"),
    ("commands/chatty.py", "import redis"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources and the contracts, to be broken."""
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_packages_keep_their_contracts(tree: Path) -> None:
    assert lint_imports(tree).returncode == 0


@pytest.mark.parametrize(
    ("module", "code", "broken"),
    [
        ("protocol/upward.py", "from toril.worker import __doc__", "packages import downwards only"),
        ("protocol/upward.py", "from ..transport import __doc__", "packages import downwards only"),
        ("producer/sideways.py", "import toril.worker", "packages import downwards only"),
        ("utils/__init__.py", "", "packages import downwards only"),
        ("jobs/impatient.py", "import redis", "only the transport speaks Redis"),
        ("worker/eager.py", "import toril.telemetry.prometheus", "packages import downwards only"),
        ("telemetry/strange.py", "", "telemetry's adapters stand on its hooks"),
        *[(module, code, "protocol and commands do no I/O") for module, code in MODULES_WITH_IO],
        ("spark/curious.py", "import toril.worker", "Spark's executors load no worker code"),
    ],
)
def test_a_breach_of_the_plan_fails(tree: Path, module: str, code: str, broken: str) -> None:
    adapter = tree / "src/toril/telemetry/prometheus.py"
    adapter.touch()
    file = tree / "src/toril" / module
    file.parent.mkdir(exist_ok=True)
    file.write_text(code + "\n")
    result = lint_imports(tree)
    assert result.returncode == 1, result.stdout
    assert any(line.startswith(broken) and " BROKEN" in line for line in result.stdout.splitlines()), (
        result.stdout
    )


def test_the_one_module_that_knows_errors_of_the_world_takes_nothing_but_errors_from_it() -> None:
    source = ast.parse(Path(classify.__file__).read_text())
    worldly = {"asyncio", "socket", "ssl"}
    used = [
        (node.value.id, node.attr)
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in worldly
    ]
    assert {module for module, _ in used} == worldly
    for module, name in used:
        assert issubclass(getattr(importlib.import_module(module), name), BaseException)
    taken = [node for node in ast.walk(source) if isinstance(node, ast.ImportFrom)]
    assert [one.names[0].name for one in taken if one.module == "concurrent.futures"] == ["BrokenExecutor"]
    assert not worldly & {one.module for one in taken}


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("producer/curious.py", "import toril.worker._fetch_loop"),
        ("producer/curious.py", "from toril.worker._fetch_loop import FetchLoop"),
        ("producer/curious.py", "from toril.worker import _fetch_loop"),
        ("producer/curious.py", "from ..worker._fetch_loop import FetchLoop"),
        ("producer/curious.py", "from ..worker import _fetch_loop"),
        ("producer/curious.py", "def late():\n    from toril.transport._async import AsyncTransport"),
        ("producer/curious.py", 'NAMES = {"FetchLoop": "toril.worker._fetch_loop"}'),
        ("worker/curious.py", "from toril.observe.doctor import _finding"),
        ("observe/curious.py", "from toril.observe.doctor._finding import Finding"),
    ],
)
def test_an_import_of_a_private_module_from_outside_its_package_fails(
    tree: Path, module: str, code: str
) -> None:
    (tree / "src/toril" / module).write_text(code + "\n")
    result = check_private_imports(tree / "src")
    assert result.returncode == 1
    assert f"{module}:" in result.stderr
    assert "it is private to its package" in result.stderr


def test_a_private_module_may_be_imported_inside_its_package(tree: Path) -> None:
    (tree / "src/toril/worker/neighbour.py").write_text("from toril.worker._fetch_loop import FetchLoop\n")
    (tree / "src/toril/worker/relative.py").write_text("from . import _fetch_loop\nfrom ._runtime import *\n")
    (tree / "src/toril/observe/doctor/neighbour.py").write_text("from ._finding import Finding\n")
    result = check_private_imports(tree / "src")
    assert result.returncode == 0, result.stderr


def test_lint_runs_the_check_of_private_imports() -> None:
    assert "scripts/private_imports.py" in (REPOSITORY / "scripts/lint").read_text()


@pytest.mark.parametrize(
    "name", ["utils/__init__.py", "worker/helpers.py", "transport/connection_manager.py", "jobs/util.py"]
)
def test_a_file_named_after_nothing_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    result = check_names(tmp_path)
    assert result.returncode == 1
    assert "use a name that says what it contains" in result.stderr


def test_files_named_after_their_role_pass(tmp_path: Path) -> None:
    for name in ("worker/_fetch_loop.py", "transport/manage.py", "protocol/commonality_of_keys.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert check_names(tmp_path).returncode == 0


@pytest.mark.parametrize(
    "source",
    [
        "class Foreman: ...",
        "class Queue:\n    def farewell(self) -> None: ...",
        "async def run_pumps() -> None: ...",
        "def settle(*, witness: object) -> None: ...",
        "call = lambda parcel: parcel",
        "def test_the_foreman_starts() -> None: ...",
    ],
)
def test_a_metaphor_in_a_name_fails(tmp_path: Path, source: str) -> None:
    (tmp_path / "module.py").write_text(source)
    result = check_names(tmp_path)
    assert result.returncode == 1
    assert "module.py:" in result.stderr
    assert "is a metaphor" in result.stderr


def test_a_metaphor_in_the_name_of_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "_foreman.py").touch()
    result = check_names(tmp_path)
    assert result.returncode == 1
    assert "'foreman' is a metaphor; write for instance supervisor" in result.stderr


def test_words_of_the_field_that_contain_a_metaphor_pass(tmp_path: Path) -> None:
    (tmp_path / "dead_letters.py").write_text(
        "def replay_by_hand(dead_letters: list[DeadLetter]) -> None: ..."
    )
    assert check_names(tmp_path).returncode == 0
    (tmp_path / "letters.py").touch()
    assert check_names(tmp_path).returncode == 1


def check_names(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts/check-names"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def check_private_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts/private_imports.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    # The copy is first on the path, so that it is what gets read, not the installed sources.
    program = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command as main; main()"
    command = [sys.executable, "-c", program, "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)
