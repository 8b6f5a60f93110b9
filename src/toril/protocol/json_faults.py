"""Finds the part of a value that has no JSON form, and a remedy.

    data.items[3].price    is of type fractions.Fraction, which has no JSON form; give float(…) or str(…)

Guarantee: values are never shown, only names of fields, positions and types. Nothing here runs for a value that can be
written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from toril.errors import NotSerializable

_LONGEST_KEY = 40  # characters of a key that are shown
_KNOWN_TYPES = "text, numbers, bool, None, lists, dicts, dates, dataclasses or pydantic models"


def fault_in(value: object, can_write: Callable[[object], bool], field: str) -> NotSerializable:
    """Returns the error for a value without a JSON form. `can_write` tests a part of it."""
    place, part = _innermost(value, can_write)
    where = f"{field}{place}".lstrip(".")
    if isinstance(part, str):
        return NotSerializable(where, "contains a lone surrogate", "use valid Unicode text")
    if isinstance(part, Mapping) and (key := _unwritable_key(part, can_write)) is not None:
        return _fault_of_key(where, key[0])
    problem = f"is of type {_name_of(type(part))}, which has no JSON form"
    return NotSerializable(where, problem, _remedy_for(part))


def _fault_of_key(where: str, key: object) -> NotSerializable:
    if isinstance(key, str):
        return NotSerializable(where, "has a key with a lone surrogate", "use valid Unicode text")
    return NotSerializable(where, f"has a key of type {_name_of(type(key))}", "use text as keys")


def _innermost(value: object, can_write: Callable[[object], bool]) -> tuple[str, object]:
    """The smallest part that cannot be written, and the way to it."""
    place = ""
    while step := next((one for one in _parts_of(value) if not can_write(one[1])), None):
        place, value = place + step[0], step[1]
    return place, value


def _parts_of(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((_step(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    else:
        yield from ((f".{name}", getattr(value, name)) for name in _fields_of(value) if hasattr(value, name))


def _fields_of(value: object) -> list[str]:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    return list(getattr(kind, "__struct_fields__", ()) or getattr(kind, "model_fields", ()))


def _step(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    shown = text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"
    return f".{shown}" if isinstance(key, str) and key.isidentifier() else f"[{shown!r}]"


def _unwritable_key(
    value: Mapping[object, object], can_write: Callable[[object], bool]
) -> tuple[object] | None:
    return next(((key,) for key in value if not can_write({key: None})), None)


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _remedy_for(value: object) -> str:
    if hasattr(value, "tolist"):
        return "give value.tolist()"  # numpy and pandas
    if hasattr(value, "__await__"):
        return "await it first"
    if callable(value) or isinstance(value, ModuleType):
        return "give its name, and look it up in the handler"
    if isinstance(value, BaseException):
        return "give str(error)"
    if hasattr(value, "__fspath__"):
        return "give str(path)"
    if hasattr(value, "__iter__"):
        return "give list(…)"
    if hasattr(value, "__float__"):
        return "give float(…) or str(…)"
    return f"give {_KNOWN_TYPES}"
