"""Options of commands that are declared as the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from toril.cli._option_groups import with_option_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    prefix: Annotated[str | None, typer.Option("--prefix", help="Prefix of all keys.")] = None
    env: Annotated[str, typer.Option("--env")] = "prod"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountGroup:
    count: Annotated[int, typer.Option("--count", min=1)]


received: list[tuple[str, KeyGroup, CountGroup, bool]] = []


def list_queues(
    *,
    queue: Annotated[str, typer.Argument()],
    keys: KeyGroup,
    counts: CountGroup,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """List queues."""
    received.append((queue, keys, counts, as_json))


app = typer.Typer()
app.command()(with_option_groups(list_queues))


def test_a_command_receives_its_options_in_groups() -> None:
    received.clear()

    result = CliRunner().invoke(app, ["emails", "--env", "test", "--count", "3", "--json"])

    assert result.exit_code == 0, result.output
    assert received == [("emails", KeyGroup(env="test"), CountGroup(count=3), True)]


def test_a_field_without_a_default_is_a_required_option() -> None:
    result = CliRunner().invoke(app, ["emails"])

    assert result.exit_code == 2
    assert "--count" in result.output


def test_the_help_has_the_fields_of_all_groups() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output

    assert all(option in text for option in ("--prefix", "--env", "--count", "--json"))
    assert "Prefix of all keys." in text and "List queues." in text
