"""Groups of options: a parameter of a command that is a dataclass stands for one option per field.

    @dataclass(frozen=True, kw_only=True)
    class KeyOptions:
        prefix: Prefix = None        # an `Annotated` type with a `typer.Option`
        env: Env = "prod"

    app.command("queues")(with_option_groups(queues))    # def queues(*, keys: KeyOptions) -> None

Typer sees the fields as parameters of the command; the command receives an instance of the dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command for Typer, with one parameter for each field of its groups."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        one.name: one.annotation for one in parameters if dataclasses.is_dataclass(one.annotation)
    }

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{one.name: values.pop(one.name) for one in dataclasses.fields(group)})
        command(**values)

    flat = [
        one
        for parameter in parameters
        for one in (
            _fields(groups[parameter.name]) if parameter.name in groups else (_keyword_only(parameter),)
        )
    ]
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # `inspect` and Typer read it
    return run


def _fields(group: Any) -> Iterator[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    for one in dataclasses.fields(group):
        default = inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default
        yield inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[one.name]
        )


def _keyword_only(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
