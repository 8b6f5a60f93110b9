"""The commands of `toril`: what the help says of each, and what is imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from toril.cli._app import app
from toril.cli._commands import DESCRIPTIONS, load


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_command_is_described_by_its_own_help(name: str) -> None:
    assert load(name).help == DESCRIPTIONS[name]


def test_every_command_of_the_group_can_be_loaded_by_its_name() -> None:
    group = typer.main.get_group(app)
    assert list(group.commands) == list(DESCRIPTIONS)
    assert all(group.commands[name].name == name for name in group.commands)


def _commands_imported_by(*words: str) -> set[str]:
    program = (
        "import sys\nfrom toril.cli._app import run\n"
        "try:\n    run(sys.argv[1:])\nfinally:\n"
        "    print([name.removeprefix('toril.cli.') for name in sys.modules if name.startswith('toril.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1]
    return {name for name in DESCRIPTIONS if f"'{name}'" in modules}


def test_the_help_imports_no_command() -> None:
    assert _commands_imported_by("--help") == set()


def test_a_command_imports_no_other_command() -> None:
    assert _commands_imported_by("pause", "--help") == {"pause"}
