"""Options of a command from the environment and pyproject.toml, where the command line leaves them out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from toril.app.settings import COMMAND_OPTIONS, command_option
from toril.errors import InvalidOption

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    G = TypeVar("G", bound=DataclassInstance)
else:
    G = TypeVar("G")


def with_outside_options(context: typer.Context, group: G) -> G:
    """The group of options, with `TORIL_NAME` and `[tool.toril] name` for what was not written on the command line."""
    changes: dict[str, Any] = {}
    for one in dataclasses.fields(group):
        source = context.get_parameter_source(one.name)
        if one.name not in COMMAND_OPTIONS or source is None or source.name == "COMMANDLINE":
            continue
        found = command_option(one.name)
        if found is not None:
            changes[one.name] = _converted(context, one.name, *found)
    return dataclasses.replace(group, **changes)


def _converted(context: typer.Context, name: str, place: str, value: object) -> object:
    """The value as the command line would read it."""
    (parameter,) = (one for one in context.command.params if one.name == name)
    try:
        return parameter.process_value(context, str(value))
    except typer.BadParameter as error:
        option = f"--{name.replace('_', '-')}"
        raise InvalidOption(place, error.message.rstrip("."), f"it is the option {option}") from None
